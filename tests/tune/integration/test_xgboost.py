from __future__ import annotations

import numpy as np
import pytest
from tests.tune.integration.recorded import recorded

xgboost = pytest.importorskip(
    "xgboost", reason="pip install xgboost (its wheel is too large for every CI run)"
)

from muster.tune.integration.xgboost import TuneReportCallback, TuneReportCheckpointCallback  # noqa: E402

SETTINGS = {"objective": "reg:squarederror", "eval_metric": "rmse", "max_depth": 2, "nthread": 1}


def data():
    inputs = np.random.default_rng(0).normal(size=(200, 2))
    return xgboost.DMatrix(inputs, inputs[:, 0] ** 2)


def fit(callback, rounds=5):
    train, seen = data(), {}
    model = xgboost.train(
        SETTINGS,
        train,
        rounds,
        evals=[(train, "eval")],
        callbacks=[callback],
        evals_result=seen,
        verbose_eval=False,
    )
    return model, [{"eval-rmse": value} for value in seen["eval"]["rmse"]]


def test_every_round_is_reported_and_the_model_once_more_at_the_end(tmp_path):
    with recorded(tmp_path) as session:
        model, expected = fit(TuneReportCheckpointCallback())
    assert session.reports == [*expected, expected[-1]]
    assert session.files() == {6: ["model.ubj"]}
    restored = TuneReportCheckpointCallback.get_model(session.checkpoints[6])
    assert restored.predict(data()) == pytest.approx(model.predict(data()))


@pytest.mark.parametrize(
    ("frequency", "at_end", "saved"), [(2, False, [2, 4]), (2, True, [2, 4, 6]), (5, True, [5])]
)
def test_it_may_save_now_and_then_and_rename_what_it_reports(tmp_path, frequency, at_end, saved):
    callback = TuneReportCheckpointCallback(
        {"loss": "eval-rmse"}, filename="m.json", frequency=frequency, checkpoint_at_end=at_end
    )
    with recorded(tmp_path) as session:
        fit(callback)
    assert {tuple(each) for each in session.reports} == {("loss",)}
    assert session.files() == {number: ["m.json"] for number in saved}


def test_cross_validation_reports_mean_and_spread(tmp_path):
    with recorded(tmp_path) as session:
        xgboost.cv(SETTINGS, data(), 1, nfold=2, callbacks=[TuneReportCallback()])
    assert [sorted(each) for each in session.reports] == [
        ["test-rmse-mean", "test-rmse-std", "train-rmse-mean", "train-rmse-std"]
    ]


def test_results_may_be_changed_before_they_are_reported(tmp_path):
    with recorded(tmp_path) as session:
        fit(TuneReportCallback(results_postprocessing_fn=lambda found: {"n": len(found)}), rounds=2)
    assert (session.reports, session.files()) == ([{"n": 1}] * 2, {})
