"""A Searcher of one's own that has a list, one at a time (docs: custom search algorithms)."""

from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher


class ListSearcher(Searcher):
    def __init__(self, points):
        super().__init__(metric="score", mode="max")
        self.points = list(points)
        self.seen = []

    def suggest(self, trial_id):
        return self.points.pop(0) if self.points else Searcher.FINISHED

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.seen.append([result["score"] if result else None, error])

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


def train(config):
    if config["x"] < 0:
        raise ValueError("x is negative")
    tune.report({"score": config["x"] * 2})


def main(storage):
    searcher = ListSearcher([{"x": 1}, {"x": -1}, {"x": 3}])
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(searcher, max_concurrent=1), num_samples=10
        ),
        run_config=tune.RunConfig(name="own", storage_path=storage, verbose=0),
    ).fit()
    return {"seen": searcher.seen, "configs": [r.config for r in results], "errors": results.num_errors}
