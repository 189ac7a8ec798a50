from __future__ import annotations

import pytest

pytest.importorskip("hyperopt", reason="HyperOptSearch needs hyperopt")
from hyperopt import hp
from tests.tune.search.library_rules import LibraryRules
from tests.tune.search.searchers import is_inside

from muster.tune.search.hyperopt import HyperOptSearch
from muster.tune.search.space import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandn,
    quniform,
    randint,
    randn,
    uniform,
)


class TestRules(LibraryRules):
    steps = 28
    suggests_constants = True

    def make(self, **options):
        return HyperOptSearch(random_state_seed=1, n_initial_points=6, **options)


def searcher(space, **options):
    made = HyperOptSearch(random_state_seed=1, n_initial_points=4, **options)
    made.set_search_properties("loss", "min", space)
    return made


def drawn(made, count=20):
    found = []
    for number in range(count):
        found.append(made.suggest(f"t{number}"))
        made.on_trial_complete(f"t{number}", {"loss": number % 4})
    return found


def test_steps_and_normal_numbers():
    space = {
        "q": quniform(-1, 1, 0.25),
        "lq": qloguniform(0.5, 8, 0.5),
        "li": lograndint(1, 50),
        "lqi": qlograndint(4, 40, 4),
    }
    assert all(is_inside(one, space) for one in drawn(searcher(space)))
    normal = drawn(searcher({"n": randn(10, 1), "qn": qrandn(0, 1, 0.5)}))
    assert all(4 < one["n"] < 16 and one["qn"] % 0.5 == 0 for one in normal)


CONDITIONAL = {
    "model": choice(
        [
            {"kind": "tree", "depth": lograndint(1, 9)},
            {"kind": "net", "lr": uniform(0, 1), "layers": [uniform(1, 2), 5]},
            "none",
        ]
    )
}


def test_options_may_hold_domains():
    for one in drawn(searcher(CONDITIONAL), 30):
        model = one["model"]
        if model == "none":
            continue
        if model["kind"] == "tree":
            assert set(model) == {"kind", "depth"}
            assert model["depth"] in range(1, 9)
        else:
            assert 0 <= model["lr"] <= 1
            assert 1 <= model["layers"][0] <= 2
            assert model["layers"][1] == 5


def test_points_of_conditional_spaces():
    points = [
        {"model": {"kind": "net", "lr": 0.5, "layers": [1.5, 5]}},
        {"model": "none"},
        {"model": {"kind": "tree", "depth": 3}},
    ]
    made = searcher(CONDITIONAL, points_to_evaluate=points)
    assert [made.suggest(str(index)) for index in range(3)] == points
    with pytest.raises(ValueError, match=r"'model' .*\[\{'kind': 'tree', 'depth'"):
        searcher(CONDITIONAL, points_to_evaluate=[{"model": {"kind": "tree"}}]).suggest("a")


def test_a_space_of_hyperopts_own():
    space = {
        "x": hp.uniform("x", 0, 1),
        "c": hp.choice("c", ["a", {"y": hp.randint("y", 5)}]),
        "n": {"q": hp.quniform("q", 0, 10, 2)},
        "const": 3,
    }
    points = [{"x": 0.5, "c": 1, "y": 4, "q": 6.0}]
    made = HyperOptSearch(space, "loss", "max", points, random_state_seed=1, n_initial_points=3)
    found = drawn(made, 12)
    assert found[0] == {"x": 0.5, "c": {"y": 4}, "n": {"q": 6.0}, "const": 3}
    assert all(0 <= one["x"] <= 1 and one["n"]["q"] % 2 == 0 for one in found)
    again = HyperOptSearch(space, "loss", "max")
    again.restore_state(made.save_state())
    assert drawn(again, 3)[1:] == drawn(made, 3)[1:]


def test_a_space_of_both_kinds_keeps_constants_and_expressions():
    """Compared with Ray 2.60: the same seed gives the same values."""
    mixed = {"x": uniform(0, 1), "c": 5, "h": hp.uniform("h", 0, 1)}
    assert HyperOptSearch(mixed, "loss", "min", random_state_seed=1).suggest("a") == {
        "c": 5,
        "h": 0.4311101200577018,
        "x": 0.6766088018999444,
    }
    slashed = {"a/b": hp.uniform("a/b", 0, 1)}  # of hyperopt's own, a name is a name
    assert list(HyperOptSearch(slashed, "loss", "min", random_state_seed=1).suggest("a")) == ["a/b"]
    domains = {"x": uniform(0, 1), "c": 5, "n": {"k": "const", "y": choice([1, 2])}}
    assert HyperOptSearch(domains, "loss", "min", random_state_seed=1).suggest("a") == {
        "c": 5,
        "n": {"k": "const", "y": 2},
        "x": 0.6766088018999444,
    }


def test_a_seed_repeats_the_suggestions_and_the_first_ones_are_random():
    made = [drawn(searcher({"x": uniform(0, 1)}), 8) for _ in range(2)]
    assert made[0] == made[1]
    other = HyperOptSearch(random_state_seed=2, n_initial_points=4)
    other.set_search_properties("loss", "min", {"x": uniform(0, 1)})
    assert drawn(other, 8) != made[0]


def test_a_space_converted_by_hand_suggests_the_same_kind_of_values():
    space = {**CONDITIONAL, "step": quniform(-1, 1, 0.25), "count": lograndint(1, 50), "constant": 3}
    made = HyperOptSearch(HyperOptSearch.convert_search_space(space), "loss", "min", random_state_seed=1)
    found = drawn(made)
    assert all(
        is_inside(
            {key: one[key] for key in ("step", "count")}, {"step": space["step"], "count": space["count"]}
        )
        for one in found
    )
    models = [one["model"] for one in found if isinstance(one["model"], dict)]
    assert {model["kind"] for model in models} == {"tree", "net"}
    assert all(type(one["count"]) is int and one["constant"] == 3 for one in found)


def test_a_grid_cannot_be_converted():
    with pytest.raises(ValueError, match=r"HyperOptSearch.*grid_search"):
        HyperOptSearch.convert_search_space({"x": {"grid_search": [1, 2]}})


def test_a_seed_gives_the_trials_that_it_gives_in_ray():
    made = HyperOptSearch(random_state_seed=9, n_initial_points=20)
    made.set_search_properties("loss", "min", {"w": uniform(0, 20), "h": loguniform(1e-2, 10)})
    numbers = HyperOptSearch(random_state_seed=3, n_initial_points=20)
    numbers.set_search_properties("loss", "min", {"i": randint(1, 9), "c": choice(["a", "b"])})
    seen_in_ray = [(18.581806969385966, 0.3086271874010363), (15.35071875947667, 8.743624885385218)]
    assert [(one["w"], one["h"]) for one in drawn(made, count=2)] == seen_in_ray
    whole = [(7, "a"), (6, "a"), (4, "b"), (6, "b"), (3, "a")]
    assert [(one["i"], one["c"]) for one in drawn(numbers, count=5)] == whole
