from __future__ import annotations

import math

import pytest

pytest.importorskip(
    "hpbandster.optimizers.config_generators.bohb", reason="TuneBOHB needs hpbandster, which is not in `dev`"
)
import ConfigSpace
from tests.tune.search.library_rules import FULL, LibraryRules, loss

from muster.tune.search.bohb import TuneBOHB
from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
from muster.tune.search.sample import Float
from muster.tune.search.space import randn, uniform


class TestRules(LibraryRules):
    steps = 30

    def make(self, **options):
        return BudgetsItself(seed=1, **options)


class BudgetsItself(TuneBOHB):
    """Results of the common tests carry no budget; here each trial ends at budget 1."""

    def on_trial_complete(self, trial_id, result=None, error=False):
        told = None if result is None else {**result, "hyperband_info": {"budget": 1}}
        super().on_trial_complete(trial_id, told, error)


def searcher(space=None, **options):
    made = TuneBOHB(seed=1, **options)
    made.set_search_properties("loss", "min", space or {"x": uniform(0, 1)})
    return made


def test_the_model_learns_at_budgets_whether_results_are_flat_or_nested():
    made = [searcher(FULL) for _ in range(3)]
    for number in range(24):
        found = [one.suggest(str(number)) for one in made]
        assert found[0] == found[1]
        made[0].on_trial_result(str(number), {"loss": loss(found[0]), "hyperband_info/budget": 3})
        made[1].on_trial_result(str(number), {"loss": loss(found[1]), "hyperband_info": {"budget": 3}})
        made[2].on_trial_result(str(number), {"loss": loss(found[2]), "hyperband_info": {}})
    assert [list(one._model.kde_models) for one in made] == [[3.0], [3.0], []]


def test_results_without_budgets_are_said_once(caplog):
    made = searcher()
    for number in range(3):
        made.suggest(str(number))
        made.on_trial_result(str(number), {"loss": 1.0})
    assert caplog.text.count("use HyperBandForBOHB") == 1


def test_a_budget_is_told_once_per_trial():
    made = searcher()
    made.suggest("a")
    result = {"loss": 1.0, "hyperband_info": {"budget": 3}}
    made.on_trial_result("a", result)
    made.on_trial_complete("a", result)
    assert {budget: len(losses) for budget, losses in made._model.losses.items()} == {3.0: 1}


def test_its_own_limit_and_paused_trials_free_their_place():
    made = searcher(max_concurrent=2)
    assert [made.suggest(name) is None for name in "abc"] == [False, False, True]
    made.on_pause("a")
    assert made.suggest("c") is not None
    made.on_unpause("a")
    made.on_trial_complete("b", {"loss": 1})
    assert made.suggest("d") is None
    limited = ConcurrencyLimiter(searcher(), max_concurrent=1)
    assert [limited.suggest(name) is None for name in "ab"] == [False, True]


def test_normal_numbers_need_bounds():
    made = searcher({"x": Float(-2, 2).normal(0, 1)})
    assert all(-2 <= made.suggest(str(number))["x"] <= 2 for number in range(20))
    with pytest.raises(ValueError, match="normal"):
        searcher({"x": randn(0, 1)})


def test_a_configuration_space_and_evaluated_points():
    space = ConfigSpace.ConfigurationSpace({"x": (0.0, 1.0), "c": ["a", "b"]}, seed=1)
    made = TuneBOHB(space, {"min_points_in_model": 4}, "loss", "max", [{"x": 0.5, "c": "a"}], seed=1)
    assert made.suggest("a") == {"x": 0.5, "c": "a"}
    assert type(made.suggest("b")["x"]) is float
    for number in range(12):
        made.add_evaluated_point({"x": number / 12, "c": "ab"[number % 2]}, math.sin(number))
    assert list(made._model.kde_models) == [0.0]
    again = TuneBOHB(space)
    again.restore_state(made.save_state())
    assert [again.suggest(name) for name in "cdef"] == [made.suggest(name) for name in "cdef"]
