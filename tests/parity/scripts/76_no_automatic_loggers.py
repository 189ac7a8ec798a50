"""Loggers that are not asked for are switched off (docs: TUNE_DISABLE_AUTO_CALLBACK_LOGGERS)."""

import os

from ray import tune
from ray.tune.logger import JsonLoggerCallback


def train(config):
    for step in range(2):
        tune.report({"step": step})


def main(storage):
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    try:
        results = tune.Tuner(
            train,
            param_space={"x": 1},
            run_config=tune.RunConfig(
                name="quiet", storage_path=storage, verbose=0, callbacks=[JsonLoggerCallback()]
            ),
        ).fit()
    finally:
        del os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"]
    files = sorted(name for name in os.listdir(results[0].path) if name != "params.pkl")
    return [files, results[0].metrics["step"], len(results[0].metrics_dataframe)]
