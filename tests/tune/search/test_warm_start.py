"""What was learned earlier: points, rewards, trials, and a whole experiment's directory."""

from __future__ import annotations

import math
import re

import pytest

from muster import tune
from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
from muster.tune.search.optuna import OptunaSearch
from muster.tune.search.space import uniform
from muster.tune.search.tpe import TPESearch

SPACE = {"x": uniform(0, 1)}


def trainable(config):
    if config["x"] > 0.9:
        raise ValueError("too far")
    return {"loss": (config["x"] - 0.3) ** 2, "val": {"cost": config["x"]}}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    storage = tmp_path_factory.mktemp("earlier")
    points = [{"x": 0.1}, {"x": 0.3}, {"x": 0.5}, {"x": 0.95}]
    tuner = tune.Tuner(
        trainable,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(points_to_evaluate=points, seed=1),
            metric="loss",
            mode="min",
            num_samples=4,
        ),
        run_config=tune.RunConfig(name="first", storage_path=str(storage), verbose=0),
    )
    return tuner.fit()


def values(searcher):
    return [(trial.params["x"], trial.state.name, trial.values) for trial in searcher.study.trials]


EXPECTED = [
    (0.1, "COMPLETE", [pytest.approx(0.04)]),
    (0.3, "COMPLETE", [pytest.approx(0.0)]),
    (0.5, "COMPLETE", [pytest.approx(0.04)]),
    (0.95, "FAIL", None),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", "analysis", "results", "one trial"])
def test_a_whole_experiment_before_the_space_is_known(earlier, kind):
    source = {
        "directory": earlier.experiment_path,
        "analysis": earlier._experiment_analysis,
        "results": earlier,
        "one trial": earlier._experiment_analysis.trials[0],
    }[kind]
    made = OptunaSearch(seed=1)
    made.add_evaluated_trials(source, "loss")
    made.set_search_properties("loss", "min", SPACE)
    assert values(made) == (EXPECTED[:1] if kind == "one trial" else EXPECTED)


def test_a_nested_metric_and_several_objectives(earlier):
    made = OptunaSearch(seed=1)
    made.add_evaluated_trials(earlier.experiment_path, ["loss", "val/cost"])
    made.set_search_properties(["loss", "val/cost"], ["min", "max"], SPACE)
    assert [trial.values for trial in made.study.trials][:2] == [
        [pytest.approx(0.04), pytest.approx(0.1)],
        [pytest.approx(0.0), pytest.approx(0.3)],
    ]


def test_through_a_limiter_and_outside_of_a_narrower_space(earlier, caplog):
    inner = OptunaSearch(SPACE | {"x": uniform(0, 0.4)}, metric="loss", mode="min", seed=1)
    ConcurrencyLimiter(inner, max_concurrent=1).add_evaluated_trials(earlier.experiment_path, "loss")
    assert [trial.params["x"] for trial in inner.study.trials] == [0.1, 0.3]
    [refused] = [message for message in caplog.messages if message.startswith("ConcurrencyLimiter: ")]
    assert re.search(r"\b0\.5\b.*\b1 more", refused)  # 0.95 too


def test_a_metric_that_nobody_reported_is_said(earlier):
    with pytest.warns(UserWarning, match="lost"):
        OptunaSearch(seed=1).add_evaluated_trials(earlier.experiment_path, "lost")


def test_a_value_that_is_no_number_is_a_failed_trial():
    made = OptunaSearch(
        SPACE, metric="loss", mode="min", points_to_evaluate=[{"x": 0.5}], evaluated_rewards=[1.0]
    )
    made.add_evaluated_point({"x": 0.25}, math.nan)
    made.add_evaluated_point({"x": 0.75}, None, pruned=True)
    assert values(made) == [(0.5, "COMPLETE", [1.0]), (0.25, "FAIL", None), (0.75, "PRUNED", None)]


def test_the_second_experiment_begins_where_the_first_ended(earlier):
    """The first part, and a second with its trials, suggest what one long search would have."""
    made = OptunaSearch(seed=7)
    made.add_evaluated_trials(earlier, "loss")
    made.set_search_properties("loss", "min", SPACE)
    first = made.suggest("a")
    again = OptunaSearch(seed=7)
    again.set_search_properties("loss", "min", SPACE)
    again.add_evaluated_trials(earlier.experiment_path, "loss")
    assert again.suggest("a") == first


@pytest.mark.parametrize("name", ["hyperopt", "bayesopt", "nevergrad", "zoopt"])
def test_other_searchers_learn_from_a_directory(earlier, name):
    library = {"bayesopt": "bayes_opt"}.get(name, name)
    pytest.importorskip(library)
    options = {"zoopt": {"budget": 10}, "nevergrad": {"optimizer": "OnePlusOne"}}.get(name, {})
    made = tune.create_searcher(name, **options)
    made.add_evaluated_trials(earlier.experiment_path, "loss")
    assert len([value for _, value, is_error, *_ in made._evaluated if not is_error]) == 3
    made.set_search_properties("loss", "min", SPACE)
    assert made._evaluated == []
    assert 0 <= made.suggest("a")["x"] <= 1


def test_bayesopts_analysis(earlier):
    pytest.importorskip("bayes_opt")
    from muster.tune.search.bayesopt import BayesOptSearch

    made = BayesOptSearch(SPACE, "loss", "min", analysis=earlier._experiment_analysis)
    assert len(made._optimizer._inner.space) == 3


@pytest.mark.slow
def test_the_model_of_the_base_install_learns_from_a_directory(earlier):
    made = TPESearch(seed=1)
    made.add_evaluated_trials(earlier.experiment_path, "loss")
    assert made.set_search_properties("loss", "min", SPACE)
    table = made._table
    assert table.u[0, : table.count].tolist() == [0.1, 0.3, 0.5, 0.95]
    assert table.known.tolist() == [True, True, True, False]  # the last one failed
    assert table.good().tolist() == [1]


@pytest.mark.parametrize("made", [{}, {"space": {"x": uniform(2, 3)}}])
def test_many_points_outside_of_the_space_are_one_warning(earlier, caplog, made):
    searcher = TPESearch(**made, metric="loss", mode="min")
    searcher.add_evaluated_trials(earlier, "loss")
    searcher.set_search_properties("loss", "min", {"x": uniform(2, 3)})
    [record] = [record for record in caplog.records if record.name.startswith("muster.tune.search")]
    assert "3 more" in record.getMessage()  # also that of the failed trial
