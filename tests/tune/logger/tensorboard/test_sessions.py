"""The end of a trial as TensorBoard's HPARAMS tab shows it, whoever writes the file."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from tests.tune.logger.files.test_writer_process import process_of, with_process
from tests.tune.logger.harness import LoggerHarness, make_trial
from tests.tune.logger.tensorboard_reading import accumulated, hparams_tab

from muster import tune
from muster.tune.logger.files.trial_log import CSV, JSON, TBX
from muster.tune.logger.files.writer import LogWriter

tensorboard = pytest.importorskip("tensorboard")
ALL = JSON | CSV | TBX


def rows_of_tab(directory):
    """{run: (hparams, the last loss, status)}"""
    _, rows = hparams_tab(directory)
    return {
        run: (hparams, metrics.get("ray/tune/loss"), status)
        for run, (hparams, metrics, status, _) in rows.items()
    }


def test_a_trial_that_ends_or_fails_is_shown_with_its_last_config(harness, tmp_path):
    good, bad = make_trial("good"), make_trial("bad", {"x": 2, "f": len})
    for trial in (good, bad):
        harness.start(trial)
        harness.report(trial, 1, loss=3.0)
    good.config = {"x": 5}
    harness.start(good)  # as after an exploit
    harness.report(good, 2, loss=1.5)
    harness.complete(good)
    harness.fire("on_trial_error", bad)
    assert harness.writer.close(20)
    assert rows_of_tab(tmp_path) == {
        "dir_good": ({"x": 5.0}, 1.5, "STATUS_SUCCESS"),
        "dir_bad": ({"x": 2.0}, 3.0, "STATUS_FAILURE"),
    }


def test_a_trial_that_is_still_running_is_not_shown_yet(harness, tmp_path):
    running, over = make_trial("running"), make_trial("over")
    for trial in (running, over):
        harness.start(trial)
        harness.report(trial, 1, loss=1.0)
    harness.complete(over)
    assert harness.writer.close(20)
    assert list(rows_of_tab(tmp_path)) == ["dir_over"]


def test_without_the_tensorboard_logger_there_is_no_event_file(tmp_path):
    writer = LogWriter()
    writer.start(writer.log("t", str(tmp_path / "t")), JSON | CSV, {"x": 1}, (0, 0))
    writer.end("t")
    assert writer.close(20)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "params.json",
        "params.pkl",
        "result.json",
    ]


def run_of(writer, tmp_path, name, config):
    log = writer.log(name, str(tmp_path / "runs" / name))
    writer.start(log, ALL, config, (0, 0))
    picture = np.full((3, 4, 4), 9, np.uint8)
    writer.row(log, ALL, {"training_iteration": 1, "loss": 0.5, "seen": picture, "config": config})


def test_a_process_that_writes_shows_the_same_of_plain_and_odd_configs(tmp_path):
    writer = with_process(tmp_path)
    run_of(writer, tmp_path, "plain", {"x": 1, "sizes": [2, 3]})
    run_of(writer, tmp_path, "odd", {"x": np.float32(0.5), "f": len, "n": {"flag": np.bool_(False)}})
    writer.end("plain")
    writer.end("odd", failed=True)
    assert writer.close(20)
    assert rows_of_tab(tmp_path / "runs") == {
        "plain": ({"x": 1.0, "sizes": "[2, 3]"}, 0.5, "STATUS_SUCCESS"),
        "odd": ({"x": 0.5, "n/flag": False}, 0.5, "STATUS_FAILURE"),
    }
    [image] = accumulated(tmp_path / "runs" / "odd").Images("ray/tune/seen")
    assert (image.width, image.height) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"x": 1}, {"x": np.int64(1), "f": len}])
def test_a_config_given_to_a_process_that_is_killed_is_shown_all_the_same(tmp_path, config):
    writer = with_process(tmp_path)
    run_of(writer, tmp_path, "t", config)
    assert writer.flush(20)
    os.kill(process_of(writer), signal.SIGKILL)
    writer.end("t")
    assert writer.close(20)
    assert rows_of_tab(tmp_path / "runs") == {"t": ({"x": 1.0}, 0.5, "STATUS_SUCCESS")}


def test_a_config_given_to_the_thread_goes_to_the_process_with_the_files(tmp_path):
    harness = LoggerHarness(tmp_path / "runs", process_from=None)
    trial = make_trial("t", {"x": 1, "f": len})
    harness.start(trial)
    harness.report(trial, 1, loss=0.5)
    assert harness.writer.flush(20)
    harness.writer.close(20)
    writer = with_process(tmp_path)
    log = harness.writer.log("t", "")
    writer.running["t"] = log
    writer.row(log, ALL, {"training_iteration": 2, "loss": 0.25})
    writer.end("t")
    assert writer.close(20)
    assert rows_of_tab(tmp_path / "runs") == {"dir_t": ({"x": 1.0}, 0.25, "STATUS_SUCCESS")}


class OnceAllHaveReported(tune.Stopper):
    def __init__(self):
        self.seen = set()

    def __call__(self, trial_id, result):
        self.seen.add(trial_id)
        return False

    def stop_all(self):
        return len(self.seen) == 2


def endless(config):
    while True:
        tune.report({"loss": config["lr"]})


@pytest.mark.slow
def test_trials_ended_by_the_end_of_the_experiment_are_shown(tmp_path):
    stop = OnceAllHaveReported()
    tune.Tuner(
        tune.with_resources(endless, {"cpu": 0.1}),
        param_space={"lr": tune.grid_search([0.5, 0.25])},
        run_config=tune.RunConfig(name="e", storage_path=str(tmp_path), stop=stop, verbose=0),
    ).fit()
    assert sorted(rows_of_tab(tmp_path / "e").values(), key=str) == [
        ({"lr": 0.25}, 0.25, "STATUS_SUCCESS"),
        ({"lr": 0.5}, 0.5, "STATUS_SUCCESS"),
    ]
