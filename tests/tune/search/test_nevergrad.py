from __future__ import annotations

import pytest

pytest.importorskip("nevergrad", reason="NevergradSearch needs nevergrad")
import nevergrad
from tests.tune.search.library_rules import FULL, LibraryRules, loss, point

from muster.tune.search.nevergrad import NevergradSearch
from muster.tune.search.space import choice, qrandint, randint, uniform


@pytest.mark.slow
class TestRules(LibraryRules):
    steps = 60

    def make(self, **options):
        import numpy as np

        np.random.seed(1)
        return NevergradSearch(optimizer=nevergrad.optimizers.OnePlusOne, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NGOpt", "CMA", "TwoPointsDE", "PSO", "RandomSearch"])
def test_other_optimizers_are_resumed_exactly(name):
    made = NevergradSearch(name, {"budget": 100, "num_workers": 2})
    made.set_search_properties("loss", "min", FULL)
    made.add_evaluated_point(point(FULL, 0), 1.0)
    running = []
    for number in range(20):
        running.append((str(number), made.suggest(str(number))))
        if len(running) == 2:
            name_, config = running.pop(0)
            made.on_trial_complete(name_, {"loss": loss(config)})
    again = NevergradSearch(name)
    again.restore_state(made.save_state())
    seen = []
    for searcher in (made, again):
        searcher.on_trial_complete(running[0][0], {"loss": 0.1})
        seen.append([searcher.suggest(f"n{number}") for number in range(2)])
    assert seen[0] == seen[1]


def test_an_optimizer_is_needed_and_its_name_is_checked():
    with pytest.raises(ValueError, match=r"NevergradSearch\(optimizer="):
        NevergradSearch()
    with pytest.raises(ValueError, match="NGOptt"):
        NevergradSearch("NGOptt")
    with pytest.raises(ValueError, match=r"\bCobyla\b"):
        NevergradSearch("Cobyla", space={"x": uniform(0, 1)}, metric="loss", mode="min")


def test_a_step_is_dropped_with_a_warning(caplog):
    made = NevergradSearch("RandomSearch")
    made.set_search_properties("loss", "min", {"q": qrandint(4, 12, 4)})
    (record,) = caplog.records
    assert all(word in record.getMessage().split() for word in ("'q'", "4"))
    assert all(4 <= made.suggest(str(number))["q"] <= 12 for number in range(9))


def test_made_optimizers_and_spaces_of_nevergrads_own():
    named = nevergrad.optimizers.OnePlusOne(
        parametrization=nevergrad.p.Instrumentation(x=nevergrad.p.Scalar(lower=0, upper=1)), budget=10
    )
    made = NevergradSearch(named, metric="loss", mode="min", points_to_evaluate=[{"x": 0.25}])
    assert made.suggest("a") == {"x": pytest.approx(0.25)}
    assert 0 <= made.suggest("b")["x"] <= 1
    numbers = nevergrad.optimizers.OnePlusOne(parametrization=2, budget=10)
    made = NevergradSearch(numbers, space=["n/a", "b"], metric="loss", mode="max")
    assert set(made.suggest("a")) == {"n", "b"}
    made.on_trial_complete("a", {"loss": 1})
    with pytest.raises(ValueError, match=r"\b1\b.*\b2\b.*`space`"):
        NevergradSearch(numbers, space=["a"])
    with pytest.raises(ValueError, match=r"\boptimizer_kwargs\b"):
        NevergradSearch(numbers, {"budget": 3})
    own = nevergrad.p.Dict(x=nevergrad.p.Scalar(lower=0, upper=1))
    made = NevergradSearch(nevergrad.optimizers.RandomSearch, space=own, metric="loss", mode="min")
    assert set(made.suggest("a")) == {"x"}


def test_a_space_converted_by_hand_suggests_the_same_kind_of_values():
    space = {"x": uniform(0, 1), "n": {"c": choice(["a", "b"]), "i": randint(1, 4)}}
    made = NevergradSearch(
        "OnePlusOne", space=NevergradSearch.convert_search_space(space), metric="loss", mode="min"
    )
    found = made.suggest("t")
    assert 0 <= found["x"] <= 1
    assert (found["n"]["c"] in ("a", "b"), found["n"]["i"] in (1, 2, 3)) == (True, True)
