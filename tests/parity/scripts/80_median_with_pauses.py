"""The median stopping rule pauses instead of ending trials (docs: MedianStoppingRule(hard_stop=False))."""

from ray import tune
from ray.tune.schedulers import MedianStoppingRule


class Learner(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"score": self.config["x"] * self.at}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def main(storage):
    scheduler = MedianStoppingRule(
        time_attr="training_iteration", grace_period=1, min_samples_required=2, hard_stop=False
    )
    results = tune.Tuner(
        Learner,
        param_space={"x": tune.grid_search([9, 8, 1])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="median", storage_path=storage, verbose=0, stop={"training_iteration": 4}
        ),
    ).fit()
    return [[r.config["x"], r.metrics["training_iteration"], r.metrics["score"]] for r in results]
