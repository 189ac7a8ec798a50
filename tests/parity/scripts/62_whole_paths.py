"""A script that writes every name with its whole path (docs: the API reference does)."""

import ray.tune
import ray.tune.schedulers as schedulers
from ray import tune


class Steps(ray.tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += self.config["x"]
        return {"at": self.at}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def main(storage):
    results = ray.tune.Tuner(
        Steps,
        param_space={"x": ray.tune.grid_search([1, 2])},
        tune_config=ray.tune.TuneConfig(
            metric="at",
            mode="max",
            max_concurrent_trials=1,
            scheduler=schedulers.FIFOScheduler(),
            search_alg=tune.search.basic_variant.BasicVariantGenerator(max_concurrent=1),
        ),
        run_config=ray.tune.RunConfig(
            name="paths", storage_path=storage, verbose=0, stop=tune.stopper.MaximumIterationStopper(2)
        ),
    ).fit()
    return [result.metrics["at"] for result in results]
