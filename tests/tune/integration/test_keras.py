from __future__ import annotations

import os

import numpy as np
import pytest
from tests.tune.integration.recorded import recorded

os.environ.setdefault("KERAS_BACKEND", "jax")
pytest.importorskip("jax", reason="pip install keras jax (too large for every CI run)")
keras = pytest.importorskip("keras", reason="pip install keras jax (too large for every CI run)")

from muster.air.integrations import keras as older_name  # noqa: E402
from muster.tune.integration.keras import (  # noqa: E402
    ReportCheckpointCallback,
    TuneReportCallback,
    TuneReportCheckpointCallback,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Keras's own code
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def fit(callback, epochs=3):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    inputs = np.random.default_rng(0).normal(size=(16, 2))
    seen = model.fit(
        inputs,
        inputs[:, :1],
        epochs=epochs,
        callbacks=[callback],
        verbose=0,
        validation_data=(inputs, inputs[:, :1]),
    )
    return model, inputs, seen.history


def test_every_epoch_is_reported_with_the_model(tmp_path):
    with recorded(tmp_path) as session:
        model, inputs, history = fit(ReportCheckpointCallback(metrics={"mine": "val_loss", "loss": "loss"}))
    expected = zip(history["val_loss"], history["loss"], strict=True)
    assert session.reports == [{"mine": mine, "loss": loss} for mine, loss in expected]
    assert session.files() == {1: ["model.keras"], 2: ["model.keras"], 3: ["model.keras"]}
    restored = keras.models.load_model(f"{session.checkpoints[3].path}/model.keras")
    assert np.asarray(restored(inputs)) == pytest.approx(np.asarray(model(inputs)))


def test_checkpoints_and_reports_have_events_of_their_own(tmp_path):
    callback = ReportCheckpointCallback(
        checkpoint_on="train_end", report_metrics_on=["epoch_end"], metrics="loss"
    )
    with recorded(tmp_path) as session:
        fit(callback, epochs=2)
    assert (len(session.reports), session.files()) == (3, {3: ["model.keras"]})


def test_the_old_names_report_only_or_save_now_and_then(tmp_path):
    with recorded(tmp_path) as session:
        fit(TuneReportCallback(["loss"]), epochs=2)
        fit(TuneReportCheckpointCallback(["loss"], filename="m.keras", frequency=2), epochs=2)
    assert ([sorted(each) for each in session.reports], session.files()) == ([["loss"]] * 4, {4: ["m.keras"]})


def test_it_has_an_older_name():
    assert older_name.ReportCheckpointCallback is ReportCheckpointCallback


def test_an_event_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="on=sometimes"):
        TuneReportCallback(on="sometimes")
