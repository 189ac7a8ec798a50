from __future__ import annotations

import pytest
from tests.tune.search.library_rules import FULL
from tests.tune.search.tpe.test_tpe_search import TestRules as RulesOfTpe

from muster.tune.search.bohb import TuneBOHB
from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
from muster.tune.search.space import uniform
from muster.tune.search.tpe import TPESearch


class TestRules(RulesOfTpe):
    def make(self, **options):
        return TuneBOHB(seed=1, **options)

    def test_an_error_names_the_searcher(self):
        with pytest.raises(ValueError, match="TuneBOHB"):
            self.make(points_to_evaluate=[{"x": "?"}]).set_search_properties("loss", "min", FULL)


def searcher(space=None, **options):
    made = TuneBOHB(seed=1, **options)
    made.set_search_properties("loss", "min", space or {"x": uniform(0, 1)})
    return made


def test_its_model_is_that_of_tpe_search():
    other = TPESearch(seed=1)
    other.set_search_properties("loss", "min", FULL)
    made = searcher(FULL)
    for number in range(14):
        config = made.suggest(str(number))
        assert config == other.suggest(str(number))
        for one in (made, other):
            one.on_trial_complete(str(number), {"loss": config["x"]})


def test_settings_of_hpbandster_are_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="min_points_in_model"):
        made = TuneBOHB({"x": uniform(0, 1)}, {"min_points_in_model": 8}, "loss", "min", seed=1)
    assert made.suggest("a") == searcher().suggest("a")


def test_its_own_limit_and_paused_trials_free_their_place():
    made = searcher(max_concurrent=2)
    assert [made.suggest(name) is None for name in "abc"] == [False, False, True]
    made.on_pause("a")
    assert made.suggest("c") is not None
    again = searcher(max_concurrent=2)
    again.restore_state(made.save_state())
    for one in (made, again):
        one.on_unpause("a")
        one.on_trial_complete("b", {"loss": 1})
        assert one.suggest("d") is None
    limited = ConcurrencyLimiter(searcher(), max_concurrent=1)
    assert [limited.suggest(name) is None for name in "ab"] == [False, True]


def test_a_configuration_space_and_back():
    config_space = pytest.importorskip("ConfigSpace", reason="not in `dev`")
    numbers = {"x": (0.0, 1.0), "n": (1, 5), "c": ["a", "b"], "k": 7}
    space = config_space.ConfigurationSpace(numbers, seed=1)
    space.add(
        config_space.Float("lr", (1e-4, 1.0), log=True), config_space.OrdinalHyperparameter("o", [1, 2])
    )
    made = TuneBOHB(space, None, "loss", "max", [{"x": 0.5, "c": "a"}], seed=1)
    first = made.suggest("a")
    assert (first["x"], first["c"], first["k"]) == (0.5, "a", 7)
    for number in range(20):
        config = made.suggest(str(number))
        assert set(config) == {"x", "n", "c", "k", "lr", "o"}
        assert config["n"] in range(1, 6)
        made.on_trial_complete(str(number), {"loss": config["x"]})
    assert set(TuneBOHB.convert_search_space({"a": uniform(0, 1), "n": {"b": FULL["kind"]}})) == {"a", "n/b"}
    space.add(config_space.EqualsCondition(space["x"], space["c"], "a"))
    with pytest.raises(ValueError, match="conditions"):
        TuneBOHB(space)
