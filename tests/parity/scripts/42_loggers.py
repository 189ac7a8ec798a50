"""A LoggerCallback of one's own beside the JSON and CSV loggers (docs: how to log your own results)."""

import os

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback


class TextLogger(LoggerCallback):
    def __init__(self):
        self.lines = []

    def log_trial_start(self, trial):
        self.lines.append(f"start {trial.config['x']}")
        with open(os.path.join(trial.local_path, "own.log"), "w") as stream:
            stream.write(f"x={trial.config['x']}\n")

    def log_trial_result(self, iteration, trial, result):
        self.lines.append(f"result {trial.config['x']} {result['score']}")
        with open(os.path.join(trial.local_path, "own.log"), "a") as stream:
            stream.write(f"score={result['score']}\n")

    def log_trial_end(self, trial, failed=False):
        self.lines.append(f"end {trial.config['x']} {failed}")


def train(config):
    for step in range(2):
        tune.report({"score": config["x"] * step})


def main(storage):
    logger = TextLogger()
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(
            name="loggers",
            storage_path=storage,
            verbose=0,
            callbacks=[logger, JsonLoggerCallback(), CSVLoggerCallback()],
        ),
    ).fit()
    logs = []
    for result in results:
        with open(os.path.join(result.path, "own.log")) as stream:
            logs.append(stream.read())
    return {"lines": logger.lines, "logs": logs}
