from __future__ import annotations

import math
import re
import warnings

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from muster.errors import ConfigError, TuneError
from muster.trials.template import TrialTemplate
from muster.tune.search.optuna import OptunaSearch, optuna_search
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.searcher import Searcher
from muster.tune.search.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)

SPACE = {"x": uniform(-1, 1), "n": {"lr": loguniform(1e-4, 1e-1)}, "kind": choice(["a", "b"])}


def loss(config):
    return config["x"] ** 2 + config["n"]["lr"] + (config["kind"] == "a")


def searcher(space=SPACE, metric="loss", mode="min", **options):
    made = (
        OptunaSearch(seed=options.pop("seed", 1), **options)
        if "sampler" not in options
        else OptunaSearch(**options)
    )
    made.set_search_properties(metric, mode, space)
    return made


def states(made):
    return [trial.state.name for trial in made.study.trials]


@pytest.mark.parametrize(
    ("domain", "distribution"),
    [
        (uniform(0, 1), FloatDistribution(0, 1)),
        (loguniform(1, 10), FloatDistribution(1, 10, log=True)),
        (quniform(0, 1, 0.25), FloatDistribution(0, 1, step=0.25)),
        (randint(0, 10), IntDistribution(0, 9)),
        (qrandint(0, 10), IntDistribution(0, 9)),
        (qrandint(1, 10, 4), IntDistribution(4, 8, step=4)),
        (lograndint(1, 10), IntDistribution(1, 9, log=True)),
        (choice([1, "a", None]), CategoricalDistribution([1, "a", None])),
    ],
)
def test_domains_become_distributions(domain, distribution):
    assert OptunaSearch.convert_search_space({"n": {"p": [domain]}, "k": 3}) == {"n/p/0": distribution}


def test_a_step_on_a_log_scale_is_dropped_with_a_warning(caplog):
    converted = OptunaSearch.convert_search_space({"a": qloguniform(0.1, 1, 0.1), "b": qlograndint(2, 10, 2)})
    assert converted == {"a": FloatDistribution(0.1, 1, log=True), "b": IntDistribution(2, 10, log=True)}
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"g": grid_search([1, 2])}, "cannot take the grid_search at 'g'"),
        ({"a/b": uniform(0, 1)}, "the key 'a/b' must not hold one"),
        ({"e": {"eval": "1"}}, "cannot suggest 1 at 'e'"),
        ({"n": randn()}, "it supports uniform and log-uniform"),
        ({"c": choice([{"x": randn()}])}, "'c:0/x'"),
    ],
)
def test_what_optuna_cannot_draw_is_a_value_error(space, words):
    with pytest.raises(ValueError, match=words):
        SearchGenerator(OptunaSearch()).set_search_properties("loss", "min", {**space, "f2": 1})


def test_a_function_in_a_space_of_its_own_is_a_value_error_and_in_the_experiments_space_it_is_not_suggested():
    space = {"f": sample_from(lambda config: config["x"]), "x": uniform(0, 1)}
    with pytest.raises(ValueError, match=r"Function\(.*'f'"):
        OptunaSearch(space)
    made = SearchGenerator(OptunaSearch(seed=1))
    made.set_search_properties("loss", "min", space)
    made.add_configurations(TrialTemplate(trainable_name="t", param_space=space))
    trial = made.next_trial()
    assert (trial.config["f"], list(trial.evaluated_params)) == (trial.config["x"], ["x"])


def test_suggestions_hold_the_variables_in_the_shape_of_the_space_and_within_bounds():
    space = {"a": uniform(0, 1), "k": 1, "n": {"b": randint(0, 3), "k": 2}, "l": [5, quniform(0, 1, 0.5)]}
    made = searcher(space)
    found = [made.suggest(f"t{i}") for i in range(20)]
    assert [set(one) for one in found] == [{"a", "n", "l"}] * 20
    assert all(0 <= one["a"] <= 1 and one["n"]["b"] in (0, 1, 2) and set(one["n"]) == {"b"} for one in found)
    assert all(one["l"][0] == 5 and one["l"][1] in (0, 0.5, 1) for one in found)


def test_objects_as_options_come_back_and_are_labels_in_the_study():
    things = [object(), object(), (1, 2)]
    space = {"c": choice([*things, "plain"])}
    made = SearchGenerator(OptunaSearch(seed=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.set_search_properties("loss", "min", space)
    made.add_configurations(TrialTemplate(trainable_name="t", param_space=space, num_samples=30))
    found = [trial.config["c"] for trial in iter(made.next_trial, None)]
    assert {id(one) if one in things[:2] else one for one in found} == {
        id(things[0]),
        id(things[1]),
        (1, 2),
        "plain",
    }
    assert {t.params["c"] for t in made.searcher.study.trials} == {
        "ref_ph_359bf6a3",
        "ref_ph_7476e9ec",
        "option_2",
        "plain",
    }


def test_the_same_question_has_the_same_answer():
    made = searcher()
    assert made.suggest("a") == made.suggest("a")
    assert len(made.study.trials) == 1


def test_it_must_know_space_metric_and_mode():
    with pytest.raises(RuntimeError, match="`param_space`"):
        OptunaSearch().suggest("a")
    with pytest.raises(RuntimeError, match=r"`metric`.*`mode`"):
        OptunaSearch({"x": FloatDistribution(0, 1)}).suggest("a")
    made = SearchGenerator(OptunaSearch())
    made.add_configurations(TrialTemplate(trainable_name="t"))
    with pytest.raises(TuneError, match="`param_space`"):
        made.next_trial()


def test_a_mode_without_a_metric_optimises_the_default_one():
    made = searcher(metric=None)
    made.suggest("a")
    made.on_trial_complete("a", {"_metric": 3})
    assert (made.metric, made.study.best_value) == ("_metric", 3)


def test_a_space_of_its_own_is_kept_and_a_missing_metric_taken(caplog):
    made = OptunaSearch({"x": uniform(0, 1)})
    assert ["OptunaSearch" in message for message in caplog.messages] == [True]
    assert not made.set_search_properties("loss", "max", {"y": uniform(0, 1)})
    assert set(made.suggest("a")) == {"x"}
    assert made.study.direction == optuna.study.StudyDirection.MAXIMIZE


def test_optunas_own_distributions_are_a_space():
    made = OptunaSearch({"a/b": FloatDistribution(2, 3), "c": IntDistribution(1, 1)}, metric="m", mode="min")
    found = made.suggest("t")
    assert (2 <= found["a"]["b"] <= 3, found["c"]) == (True, 1)


# Results.


def test_ends_become_complete_pruned_or_failed_and_nan_does_no_harm():
    made = searcher()
    ends = [
        ({"loss": 1}, False),
        ({"loss": math.inf}, False),
        (None, True),
        ({}, False),
        ({"loss": math.nan}, False),
    ]
    for i, (result, error) in enumerate([*ends, ({"loss": "text"}, True), ({"loss": 2.0}, True)]):
        made.suggest(f"t{i}")
        made.on_trial_complete(f"t{i}", result, error=error)
    assert states(made) == ["COMPLETE", "COMPLETE", "FAIL", "PRUNED", "FAIL", "FAIL", "COMPLETE"]
    assert (made.study.best_value, set(made.suggest("next"))) == (1, {"x", "n", "kind"})


def test_results_on_the_way_are_intermediate_values():
    made = searcher()
    made.suggest("a")
    for step, value in enumerate([3.0, math.nan, 1.0], start=1):
        made.on_trial_result("a", {"loss": value, "training_iteration": step})
    made.on_trial_result("a", {"training_iteration": 4})
    made.on_trial_complete("a", {})
    trial = made.study.trials[0]
    assert (list(trial.intermediate_values), trial.intermediate_values[3]) == ([1, 2, 3], 1.0)
    assert (trial.state, trial.value) == (TrialState.PRUNED, 1.0)


@pytest.mark.conformance("C-130")
def test_what_comes_after_the_end_is_ignored_with_a_warning(caplog):
    made = searcher()
    made.suggest("a")
    made.on_trial_complete("a", {"loss": 1})
    made.on_trial_result("a", {"loss": 2, "training_iteration": 1})
    made.on_trial_complete("a", {"loss": 2})
    made.on_trial_complete("unknown", {"loss": 2})
    assert (made.study.best_value, len(caplog.messages)) == (1, 2)


@pytest.mark.conformance("C-130")
def test_several_objectives_and_observed_metrics():
    made = searcher(metric=["loss", "acc", "size"], mode=["min", "max", "obs"])
    for i in range(3):
        made.suggest(f"t{i}")
        made.on_trial_result(f"t{i}", {"loss": 1, "acc": 1, "training_iteration": 1})
    made.on_trial_complete("t0", {"loss": 1, "acc": 5, "size": 7})
    made.on_trial_complete("t1", {"loss": 1})
    made.on_trial_complete("t2", {"loss": 1, "acc": math.nan})
    assert [d.name for d in made.study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert [(t.state.name, t.values, t.user_attrs) for t in made.study.trials] == [
        ("COMPLETE", [1, 5], {"size": 7}),
        ("FAIL", None, {}),
        ("FAIL", None, {}),
    ]


def test_constraints_are_upper_bounds_by_result_key():
    made = searcher(constraints={"latency": 1})
    for i, result in enumerate([{"latency": 0.5}, {"latency": 3}, {}, {"latency": math.nan}]):
        made.suggest(f"t{i}")
        made.on_trial_complete(f"t{i}", {"loss": 3 - i, **result})
    assert [t.constraints["latency"] for t in made.study.trials] == [-0.5, 2, 1e300, 1e300]
    assert made.study.best_trial.number == 0


@pytest.mark.filterwarnings("ignore:.constraints_func.:FutureWarning")
def test_a_constraints_function_sees_the_last_result():
    seen = []

    def too_slow(trial):
        seen.append(dict(trial.user_attrs))
        return (trial.user_attrs["latency"] - 1,)

    sampler = optuna.samplers.TPESampler(seed=1, constraints_func=too_slow)
    made = searcher(sampler=sampler)
    made.suggest("a")
    made.on_trial_complete("a", {"loss": 1, "latency": 0.5, "note": "x", "training_iteration": 3})
    assert seen == [{"loss": 1.0, "latency": 0.5, "training_iteration": 3.0}]
    assert made.study.trials[0].state == TrialState.COMPLETE


@pytest.mark.filterwarnings("ignore:.constraints_func.:FutureWarning")
def test_a_samplers_fault_is_a_warning(caplog):
    def broken(trial):
        raise KeyError("gone")

    made = searcher(sampler=optuna.samplers.TPESampler(seed=1, constraints_func=broken))
    made.suggest("a")
    made.on_trial_complete("a", {"loss": 1})
    assert [message.split(" trial ")[1] for message in caplog.messages] == ["0: 'gone'"]
    assert made.suggest("b") is not None


# Points.


def test_points_come_first_nested_or_flat():
    points = [{"x": 0.5, "n": {"lr": 0.01}, "kind": "b"}, {"x": 0.25, "n/lr": 0.02, "kind": "a"}]
    made = searcher(points_to_evaluate=points)
    assert made.suggest("a") == points[0]
    assert made.suggest("b") == {"x": 0.25, "n": {"lr": 0.02}, "kind": "a"}


def test_points_that_were_evaluated_are_not_run_again():
    points = [{"x": 0.5, "n": {"lr": 0.01}, "kind": "b"}, {"x": 0.1, "n": {"lr": 0.02}, "kind": "a"}]
    made = searcher(points_to_evaluate=points, evaluated_rewards=[3, 4])
    assert [(t.state.name, t.value, t.params["x"]) for t in made.study.trials] == [
        ("COMPLETE", 3, 0.5),
        ("COMPLETE", 4, 0.1),
    ]
    with pytest.raises(ValueError, match="points_to_evaluate"):
        OptunaSearch(points_to_evaluate=points, evaluated_rewards=[1])


@pytest.mark.conformance("C-130")
def test_evaluated_points_become_complete_failed_or_pruned():
    made = searcher()
    point = {"x": 0.5, "n": {"lr": 0.01}, "kind": "b"}
    made.add_evaluated_point(point, 1.0, intermediate_values=[3.0, 2.0])
    made.add_evaluated_point(point, None, error=True)
    made.add_evaluated_point(point, 5.0, pruned=True)
    assert [(t.state.name, t.value) for t in made.study.trials] == [
        ("COMPLETE", 1),
        ("FAIL", None),
        ("PRUNED", 5),
    ]
    assert made.study.trials[0].intermediate_values == {0: 3, 1: 2}


# Define-by-run.


@pytest.mark.conformance("C-130")
def test_a_function_may_branch_and_add_constants():
    def space(trial):
        kind = trial.suggest_categorical("kind", ["tree", "net"])
        if kind == "tree":
            trial.suggest_int("tree/depth", 1, 3)
        else:
            trial.suggest_float("net/lr", 1e-3, 1e-1, log=True)
        return {"const": 1}

    made = OptunaSearch(space, metric="loss", mode="min", seed=1)
    found = [made.suggest(f"t{i}") for i in range(20)]
    assert {tuple(sorted(one)) for one in found} == {("const", "kind", "tree"), ("const", "kind", "net")}
    assert all(set(one[one["kind"]]) <= {"depth", "lr"} and one["const"] == 1 for one in found)
    assert made.suggest("t3") == found[3]


@pytest.mark.parametrize("returned", [5, {1: 2}, [("a", 1)]])
def test_a_function_that_returns_something_else_is_a_type_error(returned):
    made = OptunaSearch(lambda trial: returned, metric="loss", mode="min")
    with pytest.raises(TypeError, match=re.escape(f"{returned!r}")):
        made.suggest("a")
    assert states(made) == ["FAIL"]


def test_a_slow_function_is_warned_about(monkeypatch, caplog):
    monkeypatch.setattr(optuna_search, "DEFINE_BY_RUN_WARN_THRESHOLD_S", -1)
    made = OptunaSearch(lambda trial: None, metric="loss", mode="min")
    assert made.suggest("a") == {}
    assert ["trainable" in message for message in caplog.messages] == [True]


def test_evaluated_points_need_distributions():
    def space(trial):
        trial.suggest_float("x", 0, 1)

    with pytest.raises(TypeError, match="define-by-run"):
        OptunaSearch(space, metric="loss", mode="min", points_to_evaluate=[{"x": 1}], evaluated_rewards=[1])
    made = OptunaSearch(space, metric="loss", mode="min", points_to_evaluate=[{"x": 0.75}])
    assert made.suggest("a") == {"x": 0.75}


# Samplers and storages.


def test_a_sampler_with_nothing_left_finishes_the_search():
    made = searcher({"k": choice([1, 2, 3])}, sampler=optuna.samplers.GridSampler({"k": [1, 2, 3]}, seed=1))
    found = []
    for i in range(10):
        suggestion = made.suggest(f"t{i}")
        if suggestion == Searcher.FINISHED:
            break
        found.append(suggestion["k"])
        made.on_trial_complete(f"t{i}", {"loss": 1})
    assert sorted(found) == [1, 2, 3]


def test_a_sampler_must_be_one_and_takes_its_own_seed(caplog):
    with pytest.raises(AssertionError, match="'tpe'"):
        OptunaSearch(sampler="tpe")
    OptunaSearch(sampler=optuna.samplers.RandomSampler(), seed=1)
    assert ["seed" in message for message in caplog.messages] == [True]


@pytest.mark.conformance("C-130")
@pytest.mark.slow
def test_a_study_in_a_database_is_continued(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    first = searcher(storage=storage, study_name="mine")
    first.suggest("a")
    first.on_trial_complete("a", {"loss": 1})
    second = searcher(storage=storage, study_name="mine")
    assert (states(second), second.study.study_name) == (["COMPLETE"], "mine")
    first.suggest("b")
    third = OptunaSearch(storage=storage, study_name="mine")
    third.restore_state(first.save_state())
    third.on_trial_complete("b", {"loss": 2})
    assert states(second) == ["COMPLETE", "COMPLETE"]


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"muster-ml\[optuna\]"):
        OptunaSearch()


def test_nested_distributions_of_optuna_are_searched():
    made = OptunaSearch(
        {
            "lr": FloatDistribution(0, 1),
            "net": {"width": IntDistribution(1, 9), "depth": IntDistribution(2, 3)},
        },
        metric="loss",
        mode="min",
        seed=1,
    )
    found = made.suggest("t")
    assert sorted(found) == ["lr", "net"]
    assert sorted(found["net"]) == ["depth", "width"]
    assert found["net"]["depth"] in (2, 3)


def test_distributions_of_optuna_beside_our_domains_are_refused():
    with pytest.raises(ValueError, match=r"'net/width'.*FloatDistribution"):
        OptunaSearch(
            {"lr": FloatDistribution(0, 1), "net": {"width": randint(1, 9)}}, metric="loss", mode="min"
        )


CONDITIONAL = {
    "x": uniform(0, 1),
    "model": choice(
        [
            {"kind": "tree", "depth": randint(1, 9)},
            {"kind": "net", "lr": loguniform(1e-4, 1), "head": choice(["none", {"rate": uniform(0, 1)}])},
            "none",
        ]
    ),
}


def test_domains_inside_options_are_asked_for_when_the_option_is_chosen():
    point = {"x": 0.5, "model": {"kind": "net", "lr": 0.125, "head": {"rate": 0.75}}}
    made = OptunaSearch(seed=1, points_to_evaluate=[point])
    made.set_search_properties("loss", "min", CONDITIONAL)
    made.add_evaluated_point({"x": 0.1, "model": {"kind": "tree", "depth": 3}}, 0.5)
    assert made.suggest("first") == point
    seen = set()
    for number in range(30):
        config = made.suggest(str(number))
        assert made.suggest(str(number)) == config
        seen.add(str(config["model"])[:15])
        params = made.study.trials[-1].params
        assert ("model:1/head" in params) == (config["model"] != "none" and config["model"]["kind"] == "net")
        made.on_trial_complete(str(number), {"loss": config["x"]})
    assert len(seen) == 3
    again = OptunaSearch(seed=1)
    again.set_search_properties("loss", "min", CONDITIONAL)
    again.restore_state(made.save_state())
    assert again.suggest("next") == made.suggest("next")


def test_a_trial_that_its_scheduler_stopped_is_pruned():
    made = OptunaSearch(seed=1)
    made.set_search_properties("loss", "min", {"x": uniform(0, 1)})
    made.set_rungs((1.0, 3.0, 9.0), "training_iteration")
    endings = [(3, True), (9, True), (3, False), (None, True)]
    for number, (time, stopped) in enumerate(endings):
        made.suggest(str(number))
        made.on_trial_result(str(number), {"loss": 5.0, "training_iteration": 1})
        result = None if time is None else {"loss": 1.0, "training_iteration": time}
        made.on_trial_complete(str(number), result, stopped=stopped)
    found = [(trial.state.name, trial.value, trial.intermediate_values) for trial in made.study.trials]
    assert found == [
        ("PRUNED", 1.0, {1: 5.0, 3: 1.0}),
        ("COMPLETE", 1.0, {1: 5.0}),
        ("COMPLETE", 1.0, {1: 5.0}),
        ("PRUNED", 5.0, {1: 5.0}),
    ]


def test_with_several_objectives_a_stopped_trial_is_pruned_too():
    made = OptunaSearch(metric=["a", "b"], mode=["min", "max"], seed=1)
    made.set_search_properties(None, None, {"x": uniform(0, 1)})
    for number in range(14):
        made.suggest(str(number))
        made.on_trial_complete(str(number), {"a": 1.0, "b": number}, stopped=number % 2 == 0)
    assert [trial.state.name for trial in made.study.trials] == ["PRUNED", "COMPLETE"] * 7
    assert made.suggest("next") is not None
