from __future__ import annotations

import numpy as np
import pytest
from tests.tune.integration.recorded import recorded

from muster import tune
from muster.tune.integration.lightgbm import TuneReportCallback, TuneReportCheckpointCallback

lightgbm = pytest.importorskip("lightgbm", reason="pip install lightgbm")

SETTINGS = {"objective": "regression", "metric": "l2", "num_leaves": 3, "verbosity": -1, "num_threads": 1}


def data():
    inputs = np.random.default_rng(0).normal(size=(200, 2))
    return lightgbm.Dataset(inputs, inputs[:, 0] ** 2, free_raw_data=False)


def fit(*callbacks, rounds=5, **settings):
    train = data()
    return lightgbm.train(
        {**SETTINGS, **settings},
        train,
        rounds,
        valid_sets=[lightgbm.Dataset(train.data, train.label, reference=train)],
        valid_names=["eval"],
        callbacks=list(callbacks),
    )


def test_every_round_is_reported_and_the_model_saved_at_the_end(tmp_path):
    expected = {}
    with recorded(tmp_path) as session:
        model = fit(TuneReportCheckpointCallback(), lightgbm.record_evaluation(expected))
    assert session.reports == [{"eval-l2": value} for value in expected["eval"]["l2"]]
    assert session.files() == {5: ["model.txt"]}
    restored = TuneReportCheckpointCallback.get_model(session.checkpoints[5])
    assert restored.predict([[1.0, 2.0]]) == pytest.approx(model.predict([[1.0, 2.0]]))


def test_it_may_save_now_and_then_and_rename_what_it_reports(tmp_path):
    callback = TuneReportCheckpointCallback(
        {"loss": "eval-l2"}, filename="m", frequency=2, checkpoint_at_end=False
    )
    with recorded(tmp_path) as session:
        fit(callback)
    assert [sorted(each) for each in session.reports] == [["loss"]] * 5
    assert session.files() == {2: ["m"], 4: ["m"]}


def test_results_may_be_changed_before_they_are_reported(tmp_path):
    with recorded(tmp_path) as session:
        fit(TuneReportCallback(results_postprocessing_fn=lambda found: {"n": len(found)}), rounds=2)
    assert (session.reports, session.files()) == ([{"n": 1}] * 2, {})


def test_early_stopping_does_not_swallow_a_report(tmp_path):
    with recorded(tmp_path) as session:
        fit(
            TuneReportCallback(),
            lightgbm.early_stopping(2, verbose=False, min_delta=1e9),  # nothing is good enough
            rounds=50,
        )
    assert len(session.reports) == 3


def test_cross_validation_reports_mean_and_spread(tmp_path):
    with recorded(tmp_path) as session:
        lightgbm.cv(
            SETTINGS, data(), 2, nfold=2, stratified=False, callbacks=[TuneReportCallback(["valid-l2-mean"])]
        )
        lightgbm.cv(SETTINGS, data(), 1, nfold=2, stratified=False, callbacks=[TuneReportCallback()])
    assert [sorted(each) for each in session.reports] == [
        ["valid-l2-mean"],
        ["valid-l2-mean"],
        ["valid-l2-mean", "valid-l2-stdv"],
    ]


@pytest.mark.slow
def test_it_works_in_a_trial(tmp_path):
    def train(config):
        fit(TuneReportCheckpointCallback({"loss": "eval-l2"}), num_leaves=config["leaves"])

    grid = tune.Tuner(
        train,
        param_space={"leaves": tune.grid_search([2, 8])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="lgb", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert grid.errors == []
    best = grid.get_best_result()
    assert (best.config["leaves"], best.metrics["training_iteration"]) == (8, 5)
    assert TuneReportCheckpointCallback.get_model(best.checkpoint).num_trees() == 5
