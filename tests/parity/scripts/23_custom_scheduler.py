"""A scheduler of one's own: a bad second result ends a trial (docs: FIFOScheduler)."""

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler


class Impatient(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] == 2 and result["score"] < 10:
            return TrialScheduler.STOP
        return TrialScheduler.CONTINUE


def train(config):
    for step in range(4):
        tune.report({"score": config["x"] * step})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([5, 20])},
        tune_config=tune.TuneConfig(scheduler=Impatient(), max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(name="impatient", storage_path=storage, verbose=0),
    ).fit()
    return [[result.metrics["training_iteration"], result.metrics["done"]] for result in results]
