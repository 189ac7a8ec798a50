"""A budget of seconds ends an experiment that would not end (docs: stop an experiment after a time)."""

import time

from ray import tune

FILES_VARY = True  # how many rows there are depends on the machine


def train(config):
    step = 0
    while True:
        step += 1
        tune.report({"step": step})
        time.sleep(0.05)


def main(storage):
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(time_budget_s=3.0),
        run_config=tune.RunConfig(name="budget", storage_path=storage, verbose=0),
    ).fit()
    return [results.num_errors, results.num_terminated, results[0].error]
