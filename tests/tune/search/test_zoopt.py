from __future__ import annotations

import pytest

pytest.importorskip("zoopt", reason="ZOOptSearch needs zoopt")
import zoopt
from tests.tune.search.library_rules import LINEAR, LibraryRules

from muster.tune.search.space import choice, loguniform, quniform, uniform
from muster.tune.search.zoopt import ZOOptSearch


class TestRules(LibraryRules):
    space = LINEAR
    space_parameter = "dim_dict"
    steps = 40

    def make(self, **options):
        return ZOOptSearch(budget=40, seed=1, parallel_num=2, **options)


def searcher(space, **options):
    made = ZOOptSearch(budget=20, seed=1, **options)
    made.set_search_properties("loss", "min", space)
    return made


def test_one_trial_at_a_time_does_not_wait_for_ever():
    made = searcher({"x": uniform(0, 1)})
    for number in range(12):
        assert isinstance(made.suggest(str(number)), dict)
        made.on_trial_complete(str(number), None, error=True)


def test_none_until_the_random_ones_are_back_and_then_parallel_num_at_a_time():
    made = searcher({"x": uniform(0, 1)}, parallel_num=2)
    assert [made.suggest(str(number)) is None for number in range(5)] == [False] * 4 + [True]
    for number in range(4):
        made.on_trial_complete(str(number), {"loss": number})
    assert [made.suggest(f"n{number}") is None for number in range(3)] == [False, False, True]


def test_more_points_than_the_random_phase_has_places():
    points = [{"x": number / 8} for number in range(8)]
    made = searcher({"x": uniform(0, 1)}, points_to_evaluate=points)
    assert [made.suggest(str(number)) for number in range(8)] == points
    for number in range(8):
        made.on_trial_complete(str(number), {"loss": number})
    assert made.suggest("next")["x"] not in [one["x"] for one in points]


def test_a_space_that_is_used_up_ends_the_search():
    made = searcher({"c": choice([1, 2])})
    answers = []
    for number in range(30):
        answers.append(made.suggest(str(number)))
        if answers[-1] == "FINISHED":
            break
        made.on_trial_complete(str(number), {"loss": number})
    assert answers[-1] == "FINISHED"


def test_steps_are_its_precision_and_log_scales_are_refused():
    made = searcher({"q": quniform(0, 1, 0.25)}, parallel_num=9)
    found = [made.suggest(str(number))["q"] for number in range(4)]
    assert all(one % 0.25 == 0 for one in found)
    with pytest.raises(ValueError, match=r"^ZOOptSearch .*'x': .*uniform\(\)"):
        searcher({"x": loguniform(1, 2)})


def test_bad_parameters():
    with pytest.raises(ValueError, match="needs a `budget`"):
        ZOOptSearch()
    with pytest.raises(ValueError, match="poss"):
        ZOOptSearch(algo="poss", budget=10)
    with pytest.raises(ValueError, match=r"\bsede;.*\bseed\b"):
        ZOOptSearch(budget=10, sede=1)


def test_a_space_of_zoopts_own():
    space = {
        "x": (zoopt.ValueType.CONTINUOUS, [0, 1], 1e-3),
        "n/g": (zoopt.ValueType.GRID, ["a", "b"]),
    }
    made = ZOOptSearch(budget=10, dim_dict=space, metric="loss", mode="min", seed=1)
    found = made.suggest("a")
    assert 0 <= found["x"] <= 1
    assert found["n"]["g"] in ("a", "b")


def test_a_space_is_also_given_as_space_and_converted_by_hand():
    space = {"x": uniform(0, 1), "n": {"c": choice(["a", "b"])}, "constant": 3}
    converted = ZOOptSearch.convert_search_space(space)
    assert sorted(converted) == ["n/c", "x"]
    for given in (space, converted):
        made = ZOOptSearch(budget=20, seed=1, space=given, metric="loss", mode="min")
        found = made.suggest("t")
        assert 0 <= found["x"] <= 1
        assert found["n"]["c"] in ("a", "b")
    joined = ZOOptSearch.convert_search_space(space, join=True)
    assert (joined["n"]["c"], joined["constant"]) == (converted["n/c"], 3)
