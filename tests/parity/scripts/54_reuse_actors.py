"""A class that can be reset is used for one trial after the other (docs: reuse_actors, reset_config)."""

from ray import tune


class Resettable(tune.Trainable):
    def setup(self, config):
        self.total = 0
        self.x = config["x"]

    def step(self):
        self.total += self.x
        return {"total": self.total}

    def reset_config(self, new_config):
        self.total = 0
        self.x = new_config["x"]
        return True

    def save_checkpoint(self, checkpoint_dir):
        return {"total": self.total}

    def load_checkpoint(self, checkpoint):
        self.total = checkpoint["total"]


def main(storage):
    results = tune.Tuner(
        Resettable,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="reuse", storage_path=storage, verbose=0, stop={"training_iteration": 3}
        ),
    ).fit()
    return [result.metrics["total"] for result in results]
