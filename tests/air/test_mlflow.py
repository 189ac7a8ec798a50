from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest
from tests.tune.logger.harness import LoggerHarness, make_trial

from muster import tune
from muster.tune.logger.mlflow import (
    MLflowLoggerCallback,
    MLflowSettings,
    MLflowTracker,
    param_texts,
    setup_mlflow,
)
from muster.tune.logger.tracker import facts_of

mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
pytest.importorskip("sqlalchemy", reason="a local MLflow database needs sqlalchemy and alembic")
pytest.importorskip("alembic", reason="a local MLflow database needs sqlalchemy and alembic")

# Of MLflow's own code, on its way to newer versions of what it uses.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MLflow keeps artifacts of a database below the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """One database for all tests: making it takes MLflow seconds. Each test has its own experiment in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(uri):
    return mlflow.MlflowClient(uri)


def runs(client, experiment):
    found = client.get_experiment_by_name(experiment)
    assert found is not None, experiment
    return sorted(client.search_runs([found.experiment_id]), key=lambda run: run.data.params["x"])


def steps(client, run, metric):
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, metric)]


@pytest.mark.slow
def test_every_trial_is_a_run_with_its_config_results_and_end(tracked, uri, client, tmp_path):
    grid = tracked(
        MLflowLoggerCallback(
            uri,
            experiment_name="whole",
            tags={"team": 7},
            save_artifact=True,
        )
    )
    assert (len(grid), grid.num_errors) == (2, 1)
    good, bad = runs(client, "whole")
    assert [run.info.status for run in (good, bad)] == ["FINISHED", "FAILED"]
    assert good.data.params == {"x": "1", "deep/er": "[1, 2]"}
    assert steps(client, good, "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert steps(client, bad, "net/norm") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert "note" not in good.data.metrics
    assert good.data.tags["team"] == "7"
    assert good.data.tags["trial_name"] == good.info.run_name
    stored = {file.path for file in client.list_artifacts(bad.info.run_id)}
    assert {"result.json", "progress.csv", "params.json", "error.txt"} <= stored
    kept = client.download_artifacts(bad.info.run_id, "result.json", str(tmp_path))
    lines = Path(kept).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [2.0, 1.0, 2 / 3]


def test_without_a_name_it_is_the_environments_or_the_experiments(tmp_path, uri, client, monkeypatch):
    for name in ("exp", "theirs"):
        harness = LoggerHarness(tmp_path / "exp", [MLflowLoggerCallback(uri)])
        trial = make_trial("t", experiment_dir=str(tmp_path / "exp"), relative_logdir=name)
        harness.start(trial)
        harness.complete(trial)
        harness.hooks.fire("on_experiment_end", iteration=0, trials=[trial])
        harness.writer.close(30)
        assert [run.info.run_name for run in runs(client, name)] == ["f_t"]
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")


def test_an_interrupted_trial_goes_on_in_its_run(uri, client, tmp_path):
    trial = facts_of(make_trial("t", experiment_dir=str(tmp_path)))
    for loss, how in ((1.0, "KILLED"), (2.0, "FINISHED")):
        tracker = MLflowTracker(MLflowSettings(tracking_uri=uri, experiment_name="resumed"))
        tracker.start(trial)
        assert [run.info.status for run in runs(client, "resumed")] == ["RUNNING"]
        tracker.write("t", [({"loss": loss, "training_iteration": int(loss)}, 100.0 + loss)])
        if how == "FINISHED":
            tracker.end("t", failed=False)
        tracker.close()
        assert [run.info.status for run in runs(client, "resumed")] == [how]
    (run,) = runs(client, "resumed")
    assert steps(client, run, "loss") == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(("at_end", "kept"), [(False, "1"), (True, "2")])
def test_of_a_config_that_changes_the_first_or_the_last_values_are_kept(uri, client, tmp_path, at_end, kept):
    name = f"changing {at_end}"
    tracker = MLflowTracker(MLflowSettings(tracking_uri=uri, experiment_name=name, params_at_end=at_end))
    for x in (1, 2):
        tracker.start(facts_of(make_trial("t", {"x": x}, experiment_dir=str(tmp_path))))
    tracker.end("t", failed=False)
    assert [run.data.params for run in runs(client, name)] == [{"x": kept}]


def test_many_parameters_and_results_and_odd_names(uri, client, tmp_path):
    trial = facts_of(
        make_trial("t", {"x": 1, **{f"p{n}": n for n in range(250)}, "a=b": 1}, experiment_dir=str(tmp_path))
    )
    tracker = MLflowTracker(MLflowSettings(tracking_uri=uri, experiment_name="many"))
    tracker.start(trial)
    rows = [({"loss@1": float(n), "bad": float("nan"), "training_iteration": n}, n) for n in range(1, 601)]
    tracker.write("t", [(row, float(at)) for row, at in rows])
    (run,) = runs(client, "many")
    assert run.data.params == {"x": "1", **{f"p{n}": str(n) for n in range(250)}, "a_b": "1"}
    assert len(steps(client, run, "loss_1")) == 600
    tracker.close()


def test_parameters_are_flat_text():
    assert param_texts({"a": 1, "b": {"c": None, "d": {"e?": 2.5}}}) == {
        "a": "1",
        "b/c": "None",
        "b/d/e_": "2.5",
    }


@pytest.mark.slow
def test_a_server_that_is_down_does_not_disturb_the_experiment(tracked, caplog):
    callback = MLflowLoggerCallback("http://127.0.0.1:9")  # the discard port: nobody listens
    callback.flush_timeout_s = 0.5
    grid = tracked(callback)
    assert (len(grid), grid.num_errors) == (2, 1)
    assert sorted(len(result.metrics_dataframe) for result in grid) == [3, 3]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said[0].startswith("MLflow: ConnectionError: nothing answers at 127.0.0.1:9")
    assert "check tracking_uri" in said[0]
    assert said[-1].startswith("MLflow: 6 results were not sent; all of them are in the trials' result.json")


def test_the_token_is_given_to_mlflow_and_not_saved(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    callback = MLflowLoggerCallback("http://127.0.0.1:9", tracking_token="hush")
    assert b"hush" not in pickle.dumps(callback)
    callback._make_tracker()
    import os

    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "hush"


@pytest.mark.slow
def test_a_trial_can_log_by_itself(tracked, uri, client):
    def trainable(config):
        logged = setup_mlflow(
            {**config, "mlflow": {"tracking_uri": uri, "experiment_name": "inside"}},
            create_experiment_if_not_exists=True,
            tags={"k": 1},
        )
        logged.log_metric("loss", config["x"], step=1)
        tune.report({"loss": config["x"]})

    grid = tracked(trainable=trainable)
    assert grid.errors == []
    found = runs(client, "inside")
    assert [run.data.params for run in found] == [{"x": str(x), "deep/er": "[1, 2]"} for x in (1, 2)]
    assert [run.data.metrics for run in found] == [{"loss": 1.0}, {"loss": 2.0}]
    assert [run.info.run_name for run in found] == [run.data.tags["trial_name"] for run in found]
    assert {run.data.tags["k"] for run in found} == {"1"}


def test_an_experiment_that_does_not_exist_is_an_error_that_says_what_to_do(uri):
    before = mlflow.get_tracking_uri()
    try:
        with pytest.raises(ValueError, match="nowhere"):
            setup_mlflow({}, tracking_uri=uri, experiment_name="nowhere")
    finally:
        mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("folder", ["mlruns", "file:///tmp/mlruns"])
def test_a_folder_is_refused_before_the_first_trial_where_mlflow_refuses_it(folder, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    try:
        mlflow.MlflowClient(folder).search_experiments()
    except mlflow.MlflowException:
        for make in (MLflowLoggerCallback, lambda uri: setup_mlflow({}, tracking_uri=uri)):
            with pytest.raises(ValueError, match=r"sqlite:///.*MLFLOW_ALLOW_FILE_STORE=true"):
                make(folder)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert MLflowLoggerCallback(folder).tracking_uri == folder
