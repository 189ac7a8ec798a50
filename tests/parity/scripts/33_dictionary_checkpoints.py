"""save_checkpoint may return a dictionary, given to load_checkpoint after a failure (docs: class API)."""

from ray import tune


class Flaky(tune.Trainable):
    def setup(self, config):
        self.state = {"steps": 0, "lives": 1}

    def step(self):
        if self.state["steps"] == 3 and self.state["lives"] == 1:
            raise RuntimeError("the first life is over")
        self.state["steps"] += 1
        return dict(self.state)

    def save_checkpoint(self, checkpoint_dir):
        return dict(self.state)

    def load_checkpoint(self, checkpoint):
        self.state = {"steps": checkpoint["steps"], "lives": checkpoint["lives"] + 1}


def main(storage):
    results = tune.Tuner(
        Flaky,
        run_config=tune.RunConfig(
            name="dictionary",
            storage_path=storage,
            verbose=0,
            stop={"steps": 5},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            failure_config=tune.FailureConfig(max_failures=2),
        ),
    ).fit()
    metrics = results[0].metrics
    return [
        metrics["steps"],
        metrics["lives"],
        metrics["training_iteration"],
        metrics["iterations_since_restore"],
    ]
