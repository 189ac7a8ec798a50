"""Keys that exist for some values of another key: the space, the configs, points and refusals."""

from __future__ import annotations

import pytest

from muster.errors import ConfigError
from muster.trials.template import TrialTemplate
from muster.tune import choice, grid_search, uniform
from muster.tune.search import BasicVariantGenerator, SearchGenerator
from muster.tune.search.conditions import KeyCondition, SpaceEntry, build_space, grouped, key_paths
from muster.tune.search.create import create_searcher
from muster.tune.search.variant_generator import searched_keys

LR = SpaceEntry(("lr",), uniform(0.0, 1.0))
OPTIMIZER = SpaceEntry(("optimizer",), choice(["sgd", "adam"]))
MOMENTUM = SpaceEntry(("momentum",), uniform(0.5, 1.0), KeyCondition(("optimizer",), ["sgd"]))
BETA = SpaceEntry(("beta",), uniform(0.0, 0.1), KeyCondition(("optimizer",), ["sgd"], is_negated=True))
NESTEROV = SpaceEntry(("nesterov",), choice([True, False]), KeyCondition(("optimizer",), ["sgd"]))
DAMPING = SpaceEntry(("damping",), uniform(0, 1), KeyCondition(("nesterov",), [False]))


def made(search, space, count):
    search.set_search_properties("loss", "min", space)
    search.add_configurations(TrialTemplate(trainable_name="train", param_space=space, num_samples=count))
    trials = []
    while (trial := search.next_trial()) is not None:
        trials.append(trial)
        search.on_trial_complete(trial.trial_id, {"loss": trial.config["lr"]})
    return trials


def keys_by_optimizer(trials):
    return {(trial.config["optimizer"], *sorted(trial.config)) for trial in trials}


@pytest.mark.parametrize("name", ["random", "auto", "optuna", "hyperopt"])
def test_searchers_make_configs_with_the_keys_that_their_values_ask_for(name):
    if name == "hyperopt":
        pytest.importorskip("hyperopt")
    search = create_searcher(name, seed=1)
    search = search if name == "random" else SearchGenerator(search)
    trials = made(search, build_space([LR, OPTIMIZER, MOMENTUM, BETA]), 12)
    assert keys_by_optimizer(trials) == {
        ("sgd", "lr", "momentum", "optimizer"),
        ("adam", "beta", "lr", "optimizer"),
    }
    assert all(not key.startswith("if ") for trial in trials for key in trial.evaluated_params)
    assert all("if " not in trial.experiment_tag for trial in trials)


def test_a_condition_on_a_grid_goes_through_all_of_its_values():
    grid = SpaceEntry(("optimizer",), grid_search(["sgd", "adam"]))
    trials = made(BasicVariantGenerator(random_state=1), build_space([LR, grid, MOMENTUM]), 1)
    assert [sorted(trial.config) for trial in trials] == [
        ["lr", "momentum", "optimizer"],
        ["lr", "optimizer"],
    ]


def test_conditions_may_be_about_keys_with_conditions():
    space = build_space([DAMPING, LR, OPTIMIZER, NESTEROV])
    trials = made(SearchGenerator(create_searcher("auto", seed=3)), space, 20)
    seen = {
        (trial.config["optimizer"], trial.config.get("nesterov"), "damping" in trial.config)
        for trial in trials
    }
    assert seen == {("adam", None, False), ("sgd", True, False), ("sgd", False, True)}
    assert key_paths(space) == {
        ("lr",): True,
        ("optimizer",): True,
        ("nesterov",): False,
        ("damping",): False,
    }
    assert searched_keys(space) == ("lr", "optimizer", "nesterov", "damping")


def test_nested_keys_are_merged_into_their_dicts():
    name = SpaceEntry(("model", "name"), choice(["a", "b"]))
    width = SpaceEntry(("model", "width"), uniform(1, 2), KeyCondition(("model", "name"), ["a"]))
    depth = SpaceEntry(("model", "depth"), 3)
    trials = made(BasicVariantGenerator(random_state=1), build_space([LR, depth, name, width]), 8)
    assert {tuple(sorted(trial.config["model"])) for trial in trials} == {
        ("depth", "name", "width"),
        ("depth", "name"),
    }


def test_a_condition_on_a_constant_is_decided_at_once():
    constant = SpaceEntry(("optimizer",), "adam")
    assert build_space([constant, MOMENTUM._replace(condition=KeyCondition(("optimizer",), ["sgd"]))]) == {
        "optimizer": "adam"
    }


def test_one_key_may_have_a_domain_for_each_value():
    other = SpaceEntry(("momentum",), 0, KeyCondition(("optimizer",), ["adam"]))
    space = build_space([OPTIMIZER, MOMENTUM, other])
    assert key_paths(space) == {("optimizer",): True, ("momentum",): True}


def test_points_are_written_as_configs():
    space = build_space([LR, OPTIMIZER, MOMENTUM, NESTEROV, DAMPING])
    point = {"lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "nesterov": False, "damping": 0.5}
    search = SearchGenerator(create_searcher("auto", seed=1, points_to_evaluate=[grouped(space, point)]))
    assert made(search, space, 1)[0].config == point


def test_a_point_with_a_key_that_its_values_exclude_is_refused():
    space = build_space([LR, OPTIMIZER, MOMENTUM])
    with pytest.raises(ConfigError):
        grouped(space, {"lr": 0.1, "optimizer": "adam", "momentum": 0.9})


@pytest.mark.parametrize(
    "entries",
    [
        [OPTIMIZER, OPTIMIZER],
        [OPTIMIZER, MOMENTUM, MOMENTUM],
        [MOMENTUM],
        [LR, MOMENTUM._replace(condition=KeyCondition(("lr",), [0.5]))],
        [OPTIMIZER, MOMENTUM._replace(condition=KeyCondition(("optimizer",), ["sgdd"]))],
        [OPTIMIZER._replace(condition=KeyCondition(("optimizer",), ["sgd"]))],
        [LR, SpaceEntry(("lr", "base"), 1)],
        [SpaceEntry(("lr", "base"), 1), LR],
    ],
    ids=["twice", "overlap", "unknown", "not_a_choice", "never", "circle", "below_a_value", "above_a_key"],
)
def test_what_cannot_be_searched_is_refused(entries):
    with pytest.raises(ConfigError):
        build_space(entries)
