"""A ProgressReporter of one's own decides when it speaks and sees the trials (docs: console output)."""

import os

from ray import tune
from ray.tune import CLIReporter, ProgressReporter


class AtTheEnd(ProgressReporter):
    def __init__(self):
        self.last = None

    def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **kwargs):
        self.total, self.metric, self.mode = total_samples, metric, mode

    def should_report(self, trials, done=False):
        return done

    def report(self, trials, done, *sys_info):
        states = [[trial.config["x"], trial.status, trial.last_result["loss"]] for trial in trials]
        self.last = [done, self.total, self.metric, self.mode, states]


def train(config):
    for step in range(2):
        tune.report({"loss": config["x"] - step})


def main(storage):
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # Ray's newer output has no reporters
    reporter = AtTheEnd()
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([4, 7])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="reporter", storage_path=storage, verbose=1, progress_reporter=reporter
        ),
    ).fit()
    del os.environ["RAY_AIR_NEW_OUTPUT"]
    table = CLIReporter(metric_columns={"loss": "l"}, max_progress_rows=5)
    table.add_metric_column("accuracy", "acc")
    table.add_parameter_column("x")
    return reporter.last
