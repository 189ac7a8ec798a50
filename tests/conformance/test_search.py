"""Check searchers in whole experiments (their rules one by one: tests/tune/search)."""

from __future__ import annotations

import math

import pytest

from muster import tune
from muster.tune import RunConfig, TuneConfig, Tuner
from muster.tune.search import ConcurrencyLimiter, Repeater, Searcher
from muster.tune.search.optuna import OptunaSearch

pytestmark = pytest.mark.slow

SPACE = {"x": tune.uniform(0, 10), "kind": tune.choice(["a", "b"]), "n": {"k": tune.randint(1, 5)}}


def loss(config):
    return {"loss": (config["x"] - 3) ** 2 + config["n"]["k"] + (config["kind"] == "a")}


def fit(tmp_path, name, searcher, samples, trainable=loss, space=None):
    return Tuner(
        trainable,
        param_space=space,
        tune_config=TuneConfig(search_alg=searcher, num_samples=samples),
        run_config=RunConfig(name=name, storage_path=str(tmp_path), verbose=0),
    ).fit()


def one_at_a_time():
    return ConcurrencyLimiter(OptunaSearch(SPACE, metric="loss", mode="min", seed=4), max_concurrent=1)


@pytest.mark.conformance("C-132")
def test_two_halves_with_the_searcher_saved_between_them_are_one_whole(tmp_path):
    whole = [result.config for result in fit(tmp_path, "whole", one_at_a_time(), 13)]
    first = one_at_a_time()
    half = [result.config for result in fit(tmp_path, "first", first, 11)]
    first.save(str(tmp_path / "searcher"))
    second = one_at_a_time()
    second.restore(str(tmp_path / "searcher"))
    rest = [result.config for result in fit(tmp_path, "second", second, 2)]
    assert half + rest == whole


@pytest.mark.conformance("C-131")
def test_a_saved_searcher_keeps_suggestions_that_have_not_ended(tmp_path):
    first = OptunaSearch(SPACE, metric="loss", mode="min", seed=4)
    asked = {name: first.suggest(name) for name in "abc"}
    first.on_trial_complete("a", loss(asked["a"]))
    first.save(str(tmp_path / "searcher"))
    second = OptunaSearch()
    second.restore(str(tmp_path / "searcher"))
    for searcher in (first, second):
        searcher.on_trial_complete("c", loss(asked["c"]))
        searcher.on_trial_complete("b", error=True)
    assert second.suggest("d") == first.suggest("d")


def odd(config):
    """What a diverging model reports."""
    return {"loss": [math.nan, math.inf, -math.inf, 1.0][config["index"]], "other": 1}


@pytest.mark.conformance("C-129")
def test_numbers_that_are_none_do_not_break_optuna(tmp_path):
    points = [{"index": index, "x": 0.5} for index in (0, 1, 2, 3)]
    searcher = OptunaSearch(metric="loss", mode="min", seed=1, points_to_evaluate=points)
    space = {"index": tune.randint(0, 4), "x": tune.uniform(0, 1)}
    grid = fit(tmp_path, "exp", searcher, 20, odd, space)
    assert (len(grid), grid.num_errors) == (20, 0)
    assert [result.config for result in grid][:4] == points
    assert all(0 <= result.config["x"] <= 1 for result in grid)
    assert all(result.config["index"] in range(4) for result in grid)


@pytest.mark.conformance("C-129")
def test_a_grid_is_refused_by_searchers(tmp_path):
    with pytest.raises(ValueError, match="grid"):
        fit(
            tmp_path,
            "exp",
            OptunaSearch(metric="loss", mode="min"),
            2,
            loss,
            {"x": tune.grid_search([1, 2])},
        )


class Counting(Searcher):
    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.suggested, self.heard = 0, []

    def suggest(self, trial_id):
        self.suggested += 1
        return {"x": float(self.suggested)}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.heard.append(result["loss"])


def spread(config):
    return {"loss": config["x"] + config["__trial_index__"]}


@pytest.mark.conformance("C-127")
@pytest.mark.parametrize(
    ("repeat", "samples", "configs", "means"),
    [(1, 2, [1, 2], [1, 2]), (4, 12, [1, 2, 3], [2.5, 3.5, 4.5]), (5, 11, [1, 2, 3], [3.0, 4.0])],
)
def test_every_configuration_is_run_several_times(tmp_path, repeat, samples, configs, means):
    searcher = Counting()
    grid = fit(tmp_path, "exp", Repeater(searcher, repeat=repeat), samples, spread)
    assert (len(grid), sorted({result.config["x"] for result in grid})) == (samples, configs)
    assert sorted(searcher.heard) == means


class Batchwise(Counting):
    """Notes how many results it knew when it was asked."""

    def __init__(self):
        super().__init__()
        self.known = []

    def suggest(self, trial_id):
        self.known.append(len(self.heard))
        return super().suggest(trial_id)


def same(config):
    return {"loss": config["x"]}


@pytest.mark.conformance("C-125")
def test_a_batch_is_asked_for_when_the_one_before_is_done_and_the_last_may_be_short(tmp_path):
    searcher = Batchwise()
    grid = fit(tmp_path, "exp", ConcurrencyLimiter(searcher, max_concurrent=3, batch=True), 7, same)
    assert len(grid) == 7
    assert searcher.known == [0, 0, 0, 3, 3, 3, 6]
