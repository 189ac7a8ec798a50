"""A Stopper of one's own ends all trials when one is good enough (docs: stop with a class)."""

from ray import tune
from ray.tune import Stopper


class CustomStopper(Stopper):
    def __init__(self):
        self.should_stop = False

    def __call__(self, trial_id, result):
        if not self.should_stop and result["mean_accuracy"] >= 0.8:
            self.should_stop = True
        return self.should_stop

    def stop_all(self):
        return self.should_stop


def train(config):
    for step in range(4):
        tune.report({"mean_accuracy": config["base"] + step / 10})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"base": tune.grid_search([0.1, 0.7, 0.2])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(name="custom", storage_path=storage, verbose=0, stop=CustomStopper()),
    ).fit()
    return [[result.config["base"], result.metrics.get("training_iteration")] for result in results]
