"""Ray 1.8: durable trainables and a Stopper."""

import os

from ray import tune
from ray.tune.suggest.suggestion import ConcurrencyLimiter, Searcher


def train(config):
    for step in range(10):
        tune.report(step=step)


class Stop(tune.Stopper):
    def __call__(self, trial_id, result):
        return result["step"] >= 2

    def stop_all(self):
        return False


analysis = tune.run(tune.durable(train), stop=Stop(), local_dir=os.path.join(os.getcwd(), "d"), verbose=0)
assert analysis.trials[0].last_result["step"] == 2
