"""Ray 1.5 and 1.6: every keyword of tune.run of those days, stop function, logger classes, wandb mixin."""

import os

import ray
from ray import tune
from ray.tune import CLIReporter
from ray.tune.integration.wandb import wandb_mixin
from ray.tune.logger import DEFAULT_LOGGERS, CSVLogger, JsonLogger, TBXLogger
from ray.tune.stopper import MaximumIterationStopper
from ray.tune.utils.log import Verbosity


def train(config, checkpoint_dir=None):
    start = 0
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "checkpoint")) as f:
            start = int(f.read()) + 1
    for epoch in range(start, 5):
        with tune.checkpoint_dir(step=epoch) as checkpoint_dir:
            trial_name = "_".join(checkpoint_dir.split("/")[-2].split("_")[0:2])
            with open(os.path.join(checkpoint_dir, "checkpoint"), "w") as f:
                f.write(str(epoch))
        assert trial_name.startswith("train_"), trial_name
        tune.report(loss=1 / (epoch + config["a"]), epoch=epoch)


def stop(trial_id, result):
    return result["loss"] < 0.01


reporter = CLIReporter(max_progress_rows=5, print_intermediate_tables=False)
reporter.add_metric_column("loss")
analysis = tune.run(
    train,
    name="keywords",
    stop=stop,
    config={"a": tune.qloguniform(1, 10, 1), "wandb": {"project": "p"}},
    resources_per_trial={"cpu": 1, "extra_cpu": 0, "gpu": 0, "extra_gpu": 0},
    num_samples=2,
    local_dir="keywords",
    search_alg=None,
    scheduler=None,
    keep_checkpoints_num=1,
    checkpoint_score_attr="min-loss",
    checkpoint_freq=0,
    verbose=Verbosity.V0_MINIMAL,
    progress_reporter=reporter,
    log_to_file=("out.txt", "err.txt"),
    trial_name_creator=lambda trial: f"train_{trial.trial_id}",
    trial_dirname_creator=lambda trial: f"train_{trial.trial_id}_x",
    export_formats=None,
    max_failures=0,
    fail_fast=False,
    restore=None,
    loggers=DEFAULT_LOGGERS,
    callbacks=[],
    raise_on_failed_trial=False,
    reuse_actors=False,
    trial_executor=None,
    resume=False,
    queue_trials=False,
    server_port=None,
    run_errored_only=None,
    time_budget_s=600,
)
trial = analysis.get_best_trial("loss", "min", "all")
assert os.path.exists(os.path.join(trial.logdir, "out.txt"))
path = os.path.join(trial.checkpoint.value, "checkpoint")
assert open(path).read() == "4"
again = tune.run(
    train,
    name="keywords",
    local_dir="keywords",
    restore=None,
    resume="AUTO",
    config={"a": tune.qloguniform(1, 10, 1), "wandb": {"project": "p"}},
    num_samples=2,
    verbose=0,
)
assert len(again.trials) == 2
