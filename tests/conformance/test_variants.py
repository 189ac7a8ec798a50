"""Check variants in whole experiments (rule by rule: tests/tune/search)."""

from __future__ import annotations

import math

import numpy
import pytest

from muster import tune
from muster.tune.search import BasicVariantGenerator
from muster.tune.search.variant_generator import RecursiveDependencyError


def trials(tmp_path, space, samples=1, **search):
    """Return all trials of an experiment; each gets one result as soon as it is suggested."""
    tuner = tune.Tuner(
        param_space=space,
        tune_config=tune.TuneConfig(search_alg=BasicVariantGenerator(**search), num_samples=samples),
        run_config=tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0),
    )
    while (asked := tuner.ask()) is not None:
        tuner.tell(asked, {"score": 1}, done=True)
    return tuner.get_results()._experiment_analysis.trials


def tags(found):
    return [trial.experiment_tag for trial in found]


@pytest.mark.conformance("C-110")
def test_samples_without_domains_are_numbered(tmp_path):
    assert tags(trials(tmp_path, {"a": 1}, 2)) == ["0", "1"]


@pytest.mark.conformance("C-111")
def test_an_expression_is_in_the_config_and_in_the_tag(tmp_path):
    (trial,) = trials(tmp_path, {"foo": {"eval": "2 + 2"}})
    assert (trial.config, trial.experiment_tag) == ({"foo": 4}, "0_foo=4")


@pytest.mark.conformance("C-112")
def test_grids_are_multiplied_and_the_first_by_name_is_fastest(tmp_path):
    space = {"foo": tune.grid_search([1, 2, 3]), "bar": tune.grid_search([True, False])}
    found = trials(tmp_path, space)
    assert [trial.experiment_tag for trial in found] == [
        "0_bar=True,foo=1",
        "1_bar=False,foo=1",
        "2_bar=True,foo=2",
        "3_bar=False,foo=2",
        "4_bar=True,foo=3",
        "5_bar=False,foo=3",
    ]
    assert [(trial.config["bar"], trial.config["foo"]) for trial in found] == [
        (bar, foo) for foo in (1, 2, 3) for bar in (True, False)
    ]


@pytest.mark.conformance("C-113", "C-114")
def test_functions_of_other_values_whatever_the_order(tmp_path):
    space = {
        "z": tune.sample_from(lambda config: config["y"] * 10),
        "y": tune.sample_from(lambda config: config["x"] + 1),
        "x": tune.grid_search([1, 2]),
        "w": tune.sample_from(lambda: 7),
    }
    assert [trial.config for trial in trials(tmp_path, space)] == [
        {"z": 20, "y": 2, "x": 1, "w": 7},
        {"z": 30, "y": 3, "x": 2, "w": 7},
    ]


@pytest.mark.conformance("C-115")
def test_nested_values_are_named_by_their_path(tmp_path):
    (trial,) = trials(tmp_path, {"x": {"y": {"z": tune.choice([1])}}})
    assert (trial.config, trial.evaluated_params) == ({"x": {"y": {"z": 1}}}, {"x/y/z": 1})


@pytest.mark.conformance("C-116")
@pytest.mark.parametrize(
    "space",
    [
        {"foo": {"eval": "spec.config.foo"}},
        {
            "a": tune.sample_from(lambda config: config["b"]),
            "b": tune.sample_from(lambda config: config["a"]),
        },
    ],
)
def test_a_circle_is_an_error(tmp_path, space):
    with pytest.raises(RecursiveDependencyError):
        trials(tmp_path, space)


@pytest.mark.conformance("C-118")
@pytest.mark.parametrize("seed", [5, numpy.random.default_rng(5), numpy.random.RandomState(5)])
def test_the_same_seed_makes_the_same_trials(tmp_path, seed):
    import copy

    space = {"x": tune.uniform(0, 1), "n": tune.randint(0, 9), "c": tune.choice(["a", "b"])}
    first, second = (
        [trial.config for trial in trials(tmp_path / name, space, 3, random_state=copy.deepcopy(seed))]
        for name in ("one", "two")
    )
    assert first == second
    assert len({config["x"] for config in first}) == 3


@pytest.mark.conformance("C-119")
def test_a_choice_keeps_the_types_of_its_elements(tmp_path):
    options = [1, 1.0, True, "1", None, (1, 2), [1], {"a": 1}]
    space = {f"p{number}": tune.choice([option]) for number, option in enumerate(options)}
    (trial,) = trials(tmp_path, space)
    assert [(type(value), value) for value in trial.config.values()] == [(type(o), o) for o in options]


GRIDS = {"a": tune.grid_search([1, 2, 3, 4]), "b": tune.grid_search([1, 2, 3]), "x": tune.uniform(0, 1)}


@pytest.mark.conformance("C-121")
def test_points_count_as_samples_and_go_through_what_they_leave_open(tmp_path):
    points = [{"a": 1}, {"b": 2}, {"a": 1, "b": 1}]
    found = trials(tmp_path, GRIDS, 4, points_to_evaluate=points, random_state=1)
    pairs = [(trial.config["a"], trial.config["b"]) for trial in found]
    assert len(pairs) == 3 + 4 + 1 + 12
    assert pairs[:8] == [(1, 1), (1, 2), (1, 3), (1, 2), (2, 2), (3, 2), (4, 2), (1, 1)]


@pytest.mark.conformance("C-122")
def test_a_point_that_contradicts_a_constant_is_logged_and_used(tmp_path, caplog):
    (trial,) = trials(tmp_path, {"a": 5, "x": tune.uniform(0, 1)}, points_to_evaluate=[{"a": 3}])
    assert trial.config["a"] == 3
    (told,) = [m for m in caplog.messages if "preset" in m]
    assert all(part in told for part in ("3", "'a'", "5"))


@pytest.mark.conformance("C-123")
def test_random_values_are_shared_inside_a_sample_when_asked(tmp_path):
    space = {"g": tune.grid_search([1, 2, 3]), "x": tune.uniform(0, 1)}
    shared = [t.config["x"] for t in trials(tmp_path / "one", space, 2, constant_grid_search=True)]
    assert [len(set(shared[:3])), len(set(shared[3:])), len(set(shared))] == [1, 1, 2]
    assert len({t.config["x"] for t in trials(tmp_path / "two", space, 2)}) == 6


class Model:
    """An object that a user puts into a space; has no equality."""

    def __init__(self, size):
        self.size = size


def sized(config):
    return {"size": config["model"].size, "doubled": config["twice"], "pair": config["pair"][1].size}


@pytest.mark.conformance("C-134")
@pytest.mark.slow
def test_objects_and_functions_reach_trials_and_files_stay_readable(tmp_path):
    found = tune.run(
        sized,
        config={
            "model": tune.grid_search([Model(1), Model(2)]),
            "twice": tune.sample_from(lambda config: config["model"].size * 2),
            "pair": (tune.choice([math.pi]), Model(9)),
        },
        name="exp",
        storage_path=str(tmp_path),
        verbose=0,
    )
    got = [tuple(trial.last_result[key] for key in ("size", "doubled", "pair")) for trial in found.trials]
    assert got == [(1, 2, 9), (2, 4, 9)]
    again = tune.ExperimentAnalysis(found.experiment_path)
    assert [trial.config["twice"] for trial in again.trials] == [2, 4]
    assert all("0x" not in trial.experiment_tag for trial in found.trials)
