"""Trainables and environments by registered names (docs: register_trainable, register_env)."""

from ray import tune
from ray.tune.registry import get_trainable_cls


def train(config):
    tune.report({"doubled": config["x"] * 2})


class Triples(tune.Trainable):
    def step(self):
        return {"tripled": self.config["x"] * 3, "done": True}

    def save_checkpoint(self, checkpoint_dir):
        pass

    def load_checkpoint(self, checkpoint):
        pass


def main(storage):
    tune.register_trainable("doubles", train)
    tune.register_trainable("triples", Triples)
    tune.register_env("plain", lambda config: object())
    one = tune.run("doubles", config={"x": 4}, name="one", storage_path=storage, verbose=0)
    two = tune.Tuner(
        "triples",
        param_space={"x": 5},
        run_config=tune.RunConfig(name="two", storage_path=storage, verbose=0),
    ).fit()
    try:
        get_trainable_cls("nobody")
    except Exception as error:
        refused = type(error).__name__ != "KeyError"
    return [
        one.trials[0].last_result["doubled"],
        two[0].metrics["tripled"],
        refused,
        get_trainable_cls("triples").__name__,
    ]
