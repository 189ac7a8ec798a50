from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from tests.air.wandb_file import offline_runs
from tests.tune.logger.harness import make_trial

from muster import tune
from muster.tune.logger.tracker import facts_of
from muster.tune.logger.wandb import WandbLoggerCallback, WandbSettings, WandbTracker, setup_wandb

wandb = pytest.importorskip("wandb", reason="pip install wandb")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of W&B's own code
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def on_this_machine_only(monkeypatch):
    for name in list(os.environ):
        if name.startswith("WANDB_") and name != "WANDB_SERVICE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def own(row):
    """Without the times and counters that every result has."""
    return {key: row[key] for key in sorted(row) if key in ("_step", "loss", "net/norm", "note", "config/x")}


@pytest.mark.slow
def test_every_trial_is_a_run_with_its_config_results_and_end(tracked, tmp_path):
    grid = tracked(WandbLoggerCallback(project="p", excludes=["note", "time_total_s"], log_config=True))
    assert grid.num_errors == 1
    runs = offline_runs(tmp_path)
    good, bad = (runs[result.metrics["trial_id"]] for result in grid)
    assert (good.project, good.group, good.name) == (
        "p",
        "tracked",
        grid[0].path.split("/")[-1][: len(good.name)],
    )
    assert (good.config["x"], good.config["deep"], good.config["hostname"]) == (
        1,
        {"er": [1, 2]},
        grid[0].metrics["hostname"],
    )
    assert [own(row) for row in good.rows] == [
        {"_step": step, "config/x": 1, "loss": 1 / step, "net/norm": step} for step in (1, 2, 3)
    ]
    never = {"done", "should_checkpoint", "note", "time_total_s", "pid", "date", "trial_id"}
    assert never.isdisjoint(good.rows[0])
    assert "time_this_iter_s" in good.rows[0]
    assert (good.exit_code, bad.exit_code) == (0, 1)


@pytest.mark.slow
def test_environment_and_arguments_choose_project_group_and_place(tracked, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT_NAME", "theirs")
    monkeypatch.setenv("WANDB_GROUP_NAME", "group")
    tracked(WandbLoggerCallback(dir=str(tmp_path), notes="hello"))
    runs = offline_runs(tmp_path / "wandb").values()
    assert [(run.project, run.group) for run in runs] == [("theirs", "group")] * 2


def test_an_interrupted_trial_keeps_its_id_and_says_that_it_did_not_end(tmp_path):
    trial = facts_of(make_trial("t", experiment_dir=str(tmp_path)))
    tracker = WandbTracker(WandbSettings(project="p"))
    tracker.start(trial)
    tracker.start(facts_of(make_trial("t", {"x": 5}, experiment_dir=str(tmp_path))))  # a new config
    tracker.write("t", [({"loss": 1.0, "training_iteration": 1}, 0.0)])
    tracker.close()
    run = offline_runs(tmp_path)["t"]
    assert (run.config["x"], own(run.rows[0]), run.exit_code) == (5, {"_step": 1, "loss": 1.0}, 1)


def test_arrays_are_media(tmp_path):
    pytest.importorskip("PIL", reason="W&B makes images with pillow")
    tracker = WandbTracker(WandbSettings(project="p", image_kwargs={"caption": "seen"}))
    tracker.start(facts_of(make_trial("t", experiment_dir=str(tmp_path))))
    result = {
        "image": np.zeros((4, 4, 3), np.uint8),
        "weights": np.arange(9.0),
        "n": np.float32(2),
        "o": object,
    }
    tracker.write("t", [({**result, "training_iteration": 1}, 0.0)])
    tracker.close()
    row = offline_runs(tmp_path)["t"].rows[0]
    assert (row["image/_type"], row["image/caption"], row["weights/_type"]) == (
        "image-file",
        "seen",
        "histogram",
    )
    assert (row["n"], row["o"]) == (2.0, "<class 'object'>")


def test_checkpoints_become_artifacts(tmp_path):
    (tmp_path / "checkpoint_000000").mkdir()
    (tmp_path / "checkpoint_000000" / "weights").write_text("1 2 3")
    tracker = WandbTracker(WandbSettings(project="p"))
    tracker.start(facts_of(make_trial("t", experiment_dir=str(tmp_path))))
    tracker.checkpoint("t", str(tmp_path / "checkpoint_000000"))
    tracker.end("t", failed=False)
    assert offline_runs(tmp_path)["t"].artifacts == {"checkpoint_f_t": ["weights"]}


def test_without_a_key_the_experiment_does_not_begin(tracked, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(tune.TuneError, match=r"run `wandb login`, set WANDB_API_KEY.*WANDB_MODE=offline"):
        tracked(WandbLoggerCallback(project="p"))


def test_a_key_comes_from_an_argument_a_file_or_a_login(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("from-file\n")
    keys = [
        WandbLoggerCallback(api_key="given")._make_tracker()._settings.api_key,
        WandbLoggerCallback(api_key_file="~/key")._make_tracker()._settings.api_key,
    ]
    assert keys == ["given", "from-file"]
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    netrc.chmod(0o600)
    assert WandbLoggerCallback()._make_tracker()._settings.api_key is None  # W&B reads it by itself
    assert b"given" not in pickle.dumps(WandbLoggerCallback(api_key="given"))
    with pytest.raises(ValueError, match="not both"):
        WandbLoggerCallback(api_key="given", api_key_file="~/key")
    with pytest.raises(ValueError, match="nokey cannot be read: No such file"):
        WandbLoggerCallback(api_key_file="~/nokey").setup()


@pytest.mark.slow
def test_a_trial_can_log_by_itself(tracked, tmp_path):
    def trainable(config):
        with setup_wandb({**config, "wandb": {"project": "inside", "notes": "n"}}, tags=["a"]) as run:
            run.log({"loss": config["x"]})
        tune.report({"loss": config["x"]})

    grid = tracked(trainable=trainable)
    assert grid.errors == []
    runs = offline_runs(tmp_path)
    seen = [runs[result.metrics["trial_id"]] for result in grid]
    assert [(run.project, run.group, run.config["x"], run.rows[0]["loss"]) for run in seen] == [
        ("inside", "tracked", x, x) for x in (1, 2)
    ]
