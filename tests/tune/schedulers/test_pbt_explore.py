"""What PBT does to single values: exact vectors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from muster.base.rng import Seed, global_generators_at
from muster.errors import TuneError
from muster.tune.schedulers.pbt_explore import (
    Chances,
    explored,
    explored_freely,
    filled,
    original_tag,
    perturbed_tag,
)
from muster.tune.search.space import choice, randint, uniform

NEVER, ALWAYS = Chances(0.0, (1.2, 0.8)), Chances(1.0, (1.2, 0.8))


def outcomes(config, mutations, chances=NEVER, count=60):
    """All the values of `v` and what was done, over many draws."""
    found = set()
    for number in range(count):
        new, done = explored(config, mutations, chances, Seed(number).derive("test"))
        found.add((new["v"], done["v"]))
    return found


@pytest.mark.conformance("C-166")
@pytest.mark.parametrize(
    ("old", "mutation", "expected"),
    [
        (2.0, uniform(0, 3), {(2.4, "* 1.2"), (1.6, "* 0.8")}),
        (2.0, lambda: 1.0, {(2.4, "* 1.2"), (1.6, "* 0.8")}),
        (10, randint(1, 20), {(12, "* 1.2"), (8, "* 0.8")}),
        (3, lambda: 1, {(4, "* 1.2"), (2, "* 0.8")}),
        (True, lambda: False, {(True, "* 1.2"), (True, "* 0.8")}),
        (2, [1, 2, 3], {(1, "shift left"), (3, "shift right")}),
        (1, [1, 2, 3], {(1, "shift left (noop)"), (2, "shift right")}),
        (3, (1, 2, 3), {(2, "shift left"), (3, "shift right (noop)")}),
        (9, [1, 2], {(1, "resample"), (2, "resample")}),
        ("b", choice(["a", "b", "c"]), {("a", "shift left"), ("c", "shift right")}),
        (32, choice([16, 32, 64]), {(16, "shift left"), (64, "shift right")}),
        ("x", lambda: "y", {("y", "resample")}),
    ],
)
def test_a_value_is_multiplied_or_moves_to_a_neighbour_and_keeps_its_type(old, mutation, expected):
    found = outcomes({"v": old}, {"v": mutation})
    assert found == expected
    assert {type(value) for value, _ in found} == {type(value) for value, _ in expected}


@pytest.mark.conformance("C-166")
@pytest.mark.parametrize(
    ("mutation", "expected"),
    [([5, 6], {5, 6}), (choice([7]), {7}), (lambda: 8, {8}), (randint(3, 5), {3, 4})],
)
def test_with_certainty_a_value_is_drawn_anew(mutation, expected):
    found = outcomes({"v": 1}, {"v": mutation}, ALWAYS)
    assert found == {(value, "resample") for value in expected}


def test_numpy_numbers_stay_numpy_numbers():
    new, _ = explored({"v": np.int64(10)}, {"v": uniform(0, 1)}, NEVER, Seed(0).derive("test"))
    assert (type(new["v"]), new["v"] in (8, 12)) == (np.int64, True)


def test_the_rest_of_the_configuration_is_as_it_was_and_the_original_untouched():
    config = {"v": {"a": 2.0, "same": [1]}, "constant": {"x": 1}}
    new, done = explored(config, {"v": {"a": uniform(0, 1)}}, NEVER, Seed(0).derive("test"))
    assert new in (
        {"v": {"a": 2.4, "same": [1]}, "constant": {"x": 1}},
        {"v": {"a": 1.6, "same": [1]}, "constant": {"x": 1}},
    )
    assert config == {"v": {"a": 2.0, "same": [1]}, "constant": {"x": 1}}
    assert done["v"]["a"] in ("* 1.2", "* 0.8")


@pytest.mark.conformance("C-166")
def test_a_mutation_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match=r"\b3\b"):
        explored({"v": 1}, {"v": 3}, ALWAYS, Seed(0).derive("test"))


def test_missing_values_are_drawn_and_named():
    config, added = filled({"a": 1}, {"a": [5], "b": [6], "c": {"d": lambda: 7}}, Seed(0).derive("test"))
    assert config == {"a": 1, "b": 6, "c": {"d": 7}}
    assert added == {("b",): 6, ("c", "d"): 7}


def test_what_a_function_draws_from_the_global_generators_can_be_drawn_again():
    random.seed(5)
    np.random.seed(5)
    before = random.getstate()

    def draw():
        with global_generators_at(9):
            return random.random(), float(np.random.uniform())

    assert draw() == draw()
    assert random.getstate() == before
    assert np.random.uniform() == np.random.RandomState(5).uniform()


def test_a_user_function_must_return_a_configuration():
    assert explored_freely({"a": 1}, lambda config: {**config, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match=r"forgetful.*None"):
        explored_freely({}, _forgetful)


def test_a_user_function_that_raises_is_named():
    with pytest.raises(TuneError, match=r"custom_explore_fn.*_broken.*KeyError.*lr"):
        explored_freely({}, _broken)
    with pytest.raises(TuneError, match="hyperparam_mutations"):
        explored({"v": 1}, {"v": lambda: 1 / 0}, ALWAYS, Seed(0).derive("test"))


def _broken(config):
    return {"lr": config["lr"]}


def _forgetful(config):
    config["a"] = 1


def test_tags_show_the_mutated_values_and_are_not_stacked():
    tag = perturbed_tag("3_lr=0.1", {"lr": 0.25, "n": {"k": "x y"}, "other": 1}, {"lr": [1], "n": {"k": [1]}})
    assert tag == "3_lr=0.1@perturbed[lr=0.2500,k=x_y]"
    assert original_tag(tag) == "3_lr=0.1"
