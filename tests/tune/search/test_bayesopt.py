from __future__ import annotations

import logging
import math
import re

import pytest

pytest.importorskip("bayes_opt", reason="BayesOptSearch needs bayesian-optimization")

from tests.tune.search.library_rules import FLOATS, LibraryRules

from muster.tune.search.bayesopt import BayesOptSearch
from muster.tune.search.space import choice, loguniform, quniform, randint, uniform

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.slow
class TestRules(LibraryRules):
    space = FLOATS
    steps = 10
    examples = 4

    def make(self, **options):
        return BayesOptSearch(random_search_steps=4, patience=None, **options)


def searcher(space=None, **options):
    made = BayesOptSearch(**options)
    made.set_search_properties("loss", "min", space or {"x": uniform(0, 1)})
    return made


@pytest.mark.parametrize("domain", [randint(0, 9), choice([1, 2])])
def test_only_floats(domain):
    with pytest.raises(ValueError, match="BayesOptSearch"):
        searcher({"p": domain})


def test_a_log_scale_is_searched_by_its_exponent():
    made = searcher({"lr": loguniform(1e-6, 1), "x": uniform(0, 1)}, random_search_steps=40, random_state=1)
    found = [made.suggest(str(number)) for number in range(40)]
    assert all(1e-6 <= one["lr"] <= 1 and 0 <= one["x"] <= 1 for one in found)
    assert 10 < sum(one["lr"] < 1e-3 for one in found) < 30
    for number, one in enumerate(found):
        made.on_trial_complete(str(number), {"loss": abs(math.log10(one["lr"]) + 4)})
    better = made.suggest("next")
    assert 1e-5 < better["lr"] < 1e-3
    made.add_evaluated_point({"lr": 1e-4, "x": 0.5}, 0.0)


def test_a_step_is_dropped_with_a_warning(caplog):
    searcher({"p": quniform(0, 1, 0.5)})
    assert re.search(r"'p' .*\b0\.5 ", caplog.text)


@pytest.mark.conformance("C-133")
@pytest.mark.parametrize(("digits", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_the_precision_is_checked(digits, error):
    with pytest.raises(error, match="repeat_float_precision"):
        BayesOptSearch(repeat_float_precision=digits)


def test_the_model_waits_for_the_random_ones_even_if_they_fail():
    made = searcher(random_search_steps=3)
    found = [made.suggest(str(number)) for number in range(4)]
    assert [one is None for one in found] == [False, False, False, True]
    made.on_trial_complete("0", {"loss": 1.0})
    made.on_trial_complete("1", None, error=True)
    assert made.suggest("4") is None
    made.on_trial_complete("2", {"loss": float("nan")})
    assert isinstance(made.suggest("4"), dict)


@pytest.mark.conformance("C-133")
def test_a_search_that_repeats_itself_stops_early(caplog):
    made = searcher({"x": uniform(0, 1)}, random_search_steps=2, repeat_float_precision=0, patience=3)
    answers = []
    with caplog.at_level(logging.INFO):
        for number in range(20):
            answers.append(made.suggest(str(number)))
            if answers[-1] == "FINISHED":
                break
            made.on_trial_complete(str(number), {"loss": 1.0})
    assert answers[-1] == "FINISHED"
    assert "patience=None" in caplog.text


@pytest.mark.slow
def test_duplicates_are_suggested_when_asked_for_and_without_patience_it_goes_on():
    common = {"random_search_steps": 1, "repeat_float_precision": 0}
    for options in ({"skip_duplicate": False, "patience": 100}, {"patience": None}):
        made = searcher(**common, **options)
        for number in range(6):
            assert isinstance(made.suggest(str(number)), dict)
            made.on_trial_complete(str(number), {"loss": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ucb", "ei", "poi"])
def test_acquisition_functions(kind):
    made = searcher(utility_kwargs={"kind": kind, "kappa": 2.5, "xi": 0.1}, random_search_steps=2)
    for number in range(5):
        found = made.suggest(str(number))
        made.on_trial_complete(str(number), {"loss": found["x"]})


def test_bad_parameters():
    with pytest.raises(ValueError, match=r"utility_kwargs.*kapa"):
        searcher(utility_kwargs={"kind": "ucb", "kapa": 1})
    with pytest.raises(ValueError, match=r"'ubc': .*ucb, ei, poi"):
        searcher(utility_kwargs={"kind": "ubc"})
    with pytest.raises(ValueError, match=r"patience .*\b0$"):
        BayesOptSearch(patience=0)
    with pytest.raises(ValueError, match="needs `metric`"):
        BayesOptSearch(analysis=[])


def test_bounds_by_name():
    made = BayesOptSearch({"x": (0, 1), "n/y": (2, 3)}, "loss", "min", [{"x": 0.5, "n/y": 2.5}])
    assert made.suggest("a") == {"x": 0.5, "n": {"y": 2.5}}
    with pytest.raises(RuntimeError, match=r"\{'x': 'wide'\}"):
        BayesOptSearch({"x": "wide"}, "loss", "min")


def test_a_space_converted_by_hand_is_bounds_by_flat_name():
    space = {"x": uniform(0, 1), "n": {"y": uniform(2, 3)}, "constant": 5}
    assert BayesOptSearch.convert_search_space(space) == {"x": (0, 1), "n/y": (2, 3)}
    joined = BayesOptSearch.convert_search_space(space, join=True)
    assert joined == {"x": (0, 1), "n": {"y": (2, 3)}, "constant": 5}


@pytest.mark.parametrize("space", [{"a/b": uniform(4, 8)}, {"a": {"b/a": uniform(4, 8)}}])
def test_a_space_that_was_refused_is_not_kept(space):
    made = BayesOptSearch()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'(a/b|b/a)'"):
            made.set_search_properties("loss", "min", space)
    assert made.set_search_properties("loss", "min", {"x": uniform(0, 1)})
    assert list(made.suggest("a")) == ["x"]
