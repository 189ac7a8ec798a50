from __future__ import annotations

import json
import pickle
import zipfile

import pytest

from muster import tune
from muster.tune.logger.comet import CometLoggerCallback

pytest.importorskip("comet_ml", reason="pip install comet_ml")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Comet's own code
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def on_this_machine_only(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_ERROR_TRACKING_ENABLE", "false")
    monkeypatch.setenv("COMET_CONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("COMET_API_KEY", raising=False)


def archives(directory):
    """By name of the experiment: the messages Comet would send, and the tags."""
    found = {}
    for file in directory.glob("*.zip"):
        with zipfile.ZipFile(file) as archive:
            messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
            about = json.loads(archive.read("experiment.json"))
        others = {m["payload"]["key"]: m["payload"]["value"] for m in messages if m["type"] == "log_other"}
        found[others["Name"]] = (messages, others, about)
    return found


def curve(messages, name):
    metrics = [m["payload"]["metric"] for m in messages if m["type"] == "metric_msg"]
    return [(m["step"], m["metricValue"]) for m in metrics if m["metricName"] == name]


@pytest.mark.slow
def test_every_trial_is_an_experiment_with_its_config_results_and_end(tracked, tmp_path):
    callback = CometLoggerCallback(
        online=False, tags=["mine"], offline_directory=str(tmp_path / "comet"), project_name="p"
    )
    grid = tracked(callback)
    assert grid.num_errors == 1
    found = archives(tmp_path / "comet")
    assert len(found) == 2
    by_id = {others["trial_id"]: (messages, others, about) for messages, others, about in found.values()}
    messages, others, about = by_id[grid[0].metrics["trial_id"]]
    assert curve(messages, "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert curve(messages, "net/norm") == [(1, 1), (2, 2), (3, 3)]
    logged = [m["payload"] for m in messages if m["type"] == "parameter_msg"]
    params = [payload.get("param") or payload["params"] for payload in logged]  # one value, or a list
    manual = {each["paramName"]: each["paramValue"] for each in params if each["source"] == "manual"}
    assert manual == {"x": 1, "deep/er": [1, 2]}
    system = [m["payload"]["system_info"] for m in messages if m["type"] == "system_info"]
    pids = [each["value"] for each in system if each["key"] == "pid"]
    assert pids == [grid[0].metrics["pid"]]
    assert others["Failed"] in (False, "false")
    assert by_id[grid[1].metrics["trial_id"]][1]["Failed"] in (True, "true")
    assert about["tags"] == ["mine"]


def test_without_a_key_the_experiment_does_not_begin(tracked):
    with pytest.raises(tune.TuneError, match=r"COMET_API_KEY.*online=False"):
        tracked(CometLoggerCallback())


def test_the_key_is_not_saved():
    callback = CometLoggerCallback(api_key="hush", workspace="w")
    assert b"hush" not in pickle.dumps(callback)
    callback.setup()
