"""A searcher is asked for a batch at a time (docs: ConcurrencyLimiter with batch=True)."""

from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher


class Counts(Searcher):
    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.asked, self.ended, self.notes = 0, 0, []

    def suggest(self, trial_id):
        self.notes.append(["asked", self.asked, self.ended])
        self.asked += 1
        return {"x": self.asked}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.ended += 1
        self.notes.append(["told", self.ended])

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


def train(config):
    tune.report({"loss": config["x"]})


def main(storage):
    counts = Counts()
    search = ConcurrencyLimiter(counts, max_concurrent=2, batch=True)
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(search_alg=search, num_samples=4, reuse_actors=True),
        run_config=tune.RunConfig(name="batches", storage_path=storage, verbose=0),
    ).fit()
    return {"notes": counts.notes, "configs": [result.config for result in results]}
