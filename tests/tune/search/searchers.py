"""Searchers for tests: they record their calls."""

from __future__ import annotations

import json
import pathlib
import random

from hypothesis import strategies as st

from muster.tune.search import space
from muster.tune.search.sample import Categorical, Integer, Quantized
from muster.tune.search.searcher import Searcher
from muster.tune.search.variant_generator import has_unresolved_values


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


@st.composite
def drawn_domains(draw, kinds):
    """A domain made by one of the functions of the space module, with sensible and edge bounds."""
    kind = draw(st.sampled_from(kinds)).__name__
    if kind == "choice":
        return space.choice(draw(st.lists(st.sampled_from([1, 2.5, "a", None, True, (1, 2)]), min_size=1)))
    if "int" in kind:
        low, span = draw(st.integers(1, 50)), draw(st.integers(1, 100))
        if kind == "qrandint":
            return space.qrandint(low * 4, (low + span) * 4, 4)
        return getattr(space, kind)(low if "log" in kind else low - 30, low + span)
    low, span = draw(st.integers(-8, 8)), draw(st.integers(1, 12))
    if kind == "quniform":
        return space.quniform(low * 0.5, (low + span) * 0.5, 0.5)
    if kind == "loguniform":
        return space.loguniform(10.0 ** (low - 4), 10.0 ** (low - 4 + span / 4))
    return space.uniform(low / 4, (low + span) / 4)


def is_inside(config, of, with_steps=True):
    """Whether a suggestion has the variables of the space and nothing else, each inside its domain."""
    open_keys = {key for key, value in of.items() if has_unresolved_values(value)}
    if set(config) != open_keys:
        return False
    return all(
        is_inside(config[key], of[key], with_steps)
        if isinstance(of[key], dict)
        else _is_value(config[key], of[key], with_steps)
        for key in open_keys
    )


def _is_value(value, domain, with_steps):
    if isinstance(domain, Categorical):
        return any(type(value) is type(option) and value == option for option in domain.categories)
    sampler = domain.get_sampler()
    q = sampler.q if isinstance(sampler, Quantized) else None
    if isinstance(domain, Integer):
        upper = domain.upper if q is not None and q != 1 else domain.upper - 1
        is_step = q is None or not with_steps or value % q == 0
        return type(value) is int and domain.lower <= value <= upper and is_step
    is_step = q is None or not with_steps or abs(value / q - round(value / q)) < 1e-9
    return type(value) is float and domain.lower <= value <= domain.upper and is_step
