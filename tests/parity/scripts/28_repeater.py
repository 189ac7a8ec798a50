"""Each suggestion is tried three times; the searcher gets the mean (docs: Repeater)."""

from ray import tune
from ray.tune.search import Repeater, Searcher


class Two(Searcher):
    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.points = [{"x": 1}, {"x": 2}]
        self.means = []

    def suggest(self, trial_id):
        return self.points.pop(0) if self.points else None

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.means.append(result["score"])


def train(config):
    tune.report({"score": config["x"] * 10 + config["__trial_index__"]})


def main(storage):
    searcher = Two()
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=Repeater(searcher, repeat=3, set_index=True),
            num_samples=6,
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="repeater", storage_path=storage, verbose=0),
    ).fit()
    return {"means": searcher.means, "configs": [result.config for result in results]}
