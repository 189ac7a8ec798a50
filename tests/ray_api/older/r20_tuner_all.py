"""Ray 2.0 and 2.1: Tuner with every config of ray.air, session's functions, SyncConfig, best_checkpoints."""

import os

import ray
from ray import air, tune
from ray.air import Checkpoint, session
from ray.air.config import CheckpointConfig, FailureConfig, RunConfig
from ray.air.result import Result
from ray.tune import Callback, ResultGrid, TuneConfig, Tuner
from ray.tune.experiment import Trial
from ray.tune.result_grid import ResultGrid as Grid
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from ray.tune.syncer import SyncConfig


class Ends(Callback):
    ended = 0

    def on_trial_complete(self, iteration, trials, trial, **info):
        Ends.ended += 1


def train(config):
    checkpoint = session.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    assert session.get_experiment_name() == "all"
    assert session.get_trial_resources().required_resources["CPU"] == 1
    assert session.get_world_rank() == 0 and session.get_world_size() == 1
    assert os.path.isdir(session.get_trial_dir())
    for epoch in range(start, 4):
        session.report(
            {"epoch": epoch, "score": config["lr"] * epoch, "name": session.get_trial_name()},
            checkpoint=Checkpoint.from_dict(dict(epoch=epoch, weights=[1, 2])),
        )


tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": 1}),
    param_space={"lr": tune.grid_search([0.1, 0.2])},
    tune_config=tune.tune_config.TuneConfig(
        metric="score",
        mode="max",
        num_samples=1,
        max_concurrent_trials=2,
        reuse_actors=False,
        time_budget_s=300,
        scheduler=ASHAScheduler(max_t=10),
    ),
    run_config=air.RunConfig(
        name="all",
        local_dir="all-results",
        callbacks=[Ends()],
        sync_config=tune.SyncConfig(upload_dir=None, syncer=None, sync_period=300),
        checkpoint_config=air.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="max"
        ),
        failure_config=air.FailureConfig(max_failures=1, fail_fast=False),
        stop={"training_iteration": 4},
        progress_reporter=None,
        log_to_file=True,
        verbose=0,
    ),
)
grid = tuner.fit()
assert isinstance(grid, Grid) and not grid.errors
best = grid.get_best_result(metric="score", mode="max", scope="last")
assert isinstance(best, Result)
assert best.config["lr"] == 0.2
assert len(best.best_checkpoints) == 2
data = best.best_checkpoints[-1][0].to_dict()
assert data["weights"] == [1, 2]
with best.checkpoint.as_directory() as folder:
    assert os.listdir(folder)
assert best.checkpoint.to_directory()
assert len(best.metrics_dataframe) == 4
assert len(grid.get_dataframe(filter_metric="score", filter_mode="max")) == 2
restored = Tuner.restore(path=os.path.abspath("all-results/all"))
assert len(restored.get_results()) == 2
assert Ends.ended == 2
