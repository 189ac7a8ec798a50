"""ASHA by a metric of time that the class reports itself (docs: time_attr)."""

from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler


class Steps(tune.Trainable):
    def setup(self, config):
        self.timesteps = 0

    def step(self):
        self.timesteps += 10
        return {"timesteps": self.timesteps, "loss": self.config["x"] / self.timesteps}

    def reset_config(self, new_config):
        self.timesteps = 0
        self.config = new_config
        return True


def main(storage):
    scheduler = AsyncHyperBandScheduler(time_attr="timesteps", max_t=80, grace_period=10, reduction_factor=2)
    results = tune.Tuner(
        Steps,
        param_space={"x": tune.grid_search([8, 4, 9, 2, 1])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="asha_class", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config["x"], result.metrics["timesteps"]] for result in results]
