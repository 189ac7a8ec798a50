"""A Trainable class with setup, step and cleanup (docs: class trainable API)."""

from ray import tune


class MyTrainable(tune.Trainable):
    def setup(self, config):
        self.x = 0
        self.a = config["a"]

    def step(self):
        self.x += 1
        return {"score": self.a * self.x, "id_is_known": self.trial_id != "default"}

    def cleanup(self):
        self.x = None


def main(storage):
    results = tune.Tuner(
        MyTrainable,
        param_space={"a": tune.grid_search([2, 5])},
        tune_config=tune.TuneConfig(metric="score", mode="min"),
        run_config=tune.RunConfig(
            name="class_api", storage_path=storage, verbose=0, stop={"training_iteration": 3}
        ),
    ).fit()
    best = results.get_best_result()
    return [best.config, best.metrics["score"], best.metrics["id_is_known"], len(results)]
