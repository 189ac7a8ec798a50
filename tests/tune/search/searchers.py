"""Searchers for tests: they record what they hear."""

from __future__ import annotations

import json
import pathlib
import random

from muster.tune.search.searcher import Searcher


class Recorder(Searcher):
    """Counts up; its attributes can be pickled."""

    def __init__(self, metric="loss", mode="min", last=None):
        super().__init__(metric=metric, mode=mode)
        self.count = 0
        self.last = last
        self.results = []
        self.completed = []
        self.random = random.Random(1)

    def suggest(self, trial_id):
        if self.last is not None and self.count >= self.last:
            return Searcher.FINISHED
        self.count += 1
        return {"x": self.count, "r": self.random.random()}

    def on_trial_result(self, trial_id, result):
        self.results.append((trial_id, result))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.completed.append((trial_id, result, error))


class ByPath(Recorder):
    """Saves itself only the way Ray asks for, and cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.unpicklable = iter(lambda: 1, 2)

    def save(self, checkpoint_path):
        pathlib.Path(checkpoint_path).write_text(json.dumps(self.count))

    def restore(self, checkpoint_path):
        self.count = json.loads(pathlib.Path(checkpoint_path).read_text())


class SelfLimiting(Recorder):
    """Knows how many trials may run."""

    limit = None

    def set_max_concurrency(self, max_concurrent):
        self.limit = max_concurrent
        return True
