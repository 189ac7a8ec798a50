"""Run in a terminal by test_live.py: a real experiment; its trials last until told to end."""

from __future__ import annotations

import os
import sys
import time

from muster import tune


def train(config):
    tune.report({"loss": config["x"]})
    while not os.path.exists(config["until"]):
        time.sleep(0.05)
    tune.report({"loss": config["x"] / 2})


def main(storage, go_on):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0]), "until": go_on},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=storage, name="try"),
    ).fit()
    sys.stdout.write(f"{len(results)} results\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
