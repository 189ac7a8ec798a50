"""Check restore and storage as a user meets them."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from muster import tune
from muster.host.machine import cpu_count
from muster.tune import Callback, CheckpointConfig, RunConfig, TuneConfig, Tuner
from muster.tune.schedulers import FIFOScheduler
from muster.tune.search import Searcher

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("grid_program.py")


def quiet(tmp_path, **more):
    return RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, **more)


def make_counter(last):
    """Count to `last` with a checkpoint per step; fail at step 3 while `config["broken"]` exists."""

    def counter(config):
        start = 0
        checkpoint = tune.get_checkpoint()
        if checkpoint is not None:
            start = int(Path(checkpoint.path, "step").read_text())
        for step in range(start + 1, last + 1):
            if step == 3 and os.path.exists(config.get("broken", "")):
                raise RuntimeError("broken")
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "step").write_text(str(step))
                tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(directory))

    return counter


def checkpoints(result):
    """What is on disk: the content by the name of the directory."""
    found = sorted(Path(result.path).glob("checkpoint_*"))
    return {place.name: (place / "step").read_text() for place in found}


@pytest.mark.conformance("C-230")
def test_a_finished_run_keeps_its_trials_and_results_with_or_without_fit(tmp_path):
    train = make_counter(2)
    Tuner(train, tune_config=TuneConfig(num_samples=3), run_config=quiet(tmp_path)).fit()
    store = {file: file.stat().st_mtime_ns for file in tmp_path.glob("exp/*/result.json")}
    assert len(store) == 3
    only_read = Tuner.restore(tmp_path / "exp", train).get_results()
    run_again = Tuner.restore(tmp_path / "exp", train).fit()
    for grid in (only_read, run_again):
        assert (len(grid), grid.num_terminated, grid.num_errors) == (3, 3, 0)
        assert [[row["step"] for row in result.metrics_history] for result in grid] == [[1, 2]] * 3
        assert [Path(result.checkpoint.path).name for result in grid] == ["checkpoint_000001"] * 3


class StartsNoted(Callback):
    """Notes which trials are started; interrupts the run at its first result."""

    def __init__(self, notes):
        self.notes = str(notes)

    def on_trial_start(self, iteration, trials, trial, **info):
        with Path(self.notes).open("a") as file:
            file.write(f"{trial.config['x']} ")

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if "again" not in Path(self.notes).read_text():
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.conformance("C-232")
def test_started_trials_resume_before_waiting_ones_start(tmp_path):
    def train(config):
        tune.report({"step": 1})
        while os.path.exists(config["hold"]):
            time.sleep(0.05)  # until it is stopped

    hold, notes = tmp_path / "hold", tmp_path / "notes"
    hold.touch()
    alone = tune.with_resources(train, {"cpu": cpu_count()})
    Tuner(
        alone,
        param_space={"x": tune.grid_search([0, 1, 2, 3]), "hold": str(hold)},
        run_config=quiet(tmp_path, callbacks=[StartsNoted(notes)]),
    ).fit()
    assert notes.read_text() == "0 "
    hold.unlink()
    notes.write_text("again: ")
    grid = Tuner.restore(tmp_path / "exp", alone).fit()
    assert (notes.read_text(), grid.num_terminated) == ("again: 0 1 2 3 ", 4)


class Stubborn(tune.Trainable):
    """Fails at its third step; then its checkpoint can be loaded only at the third attempt."""

    def setup(self, config):
        self.step_number = 0
        self.attempts = Path(config["attempts"])

    def step(self):
        if self.step_number == 2 and not self.attempts.exists():
            self.attempts.write_text("0")
            raise RuntimeError("fails once")
        self.step_number += 1
        return {"score": self.step_number, "done": self.step_number == 5}

    def save_checkpoint(self, directory):
        return {"step": self.step_number}

    def load_checkpoint(self, state):
        number = int(self.attempts.read_text()) + 1
        self.attempts.write_text(str(number))
        if number <= 2:
            raise OSError(f"cannot load, attempt {number}")
        self.step_number = state["step"]


@pytest.mark.conformance("C-233")
@pytest.mark.parametrize(("retries", "score", "errors"), [(2, 5, 0), (0, 2, 1)])
def test_failures_to_restore_are_retried_without_counting(tmp_path, monkeypatch, retries, score, errors):
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", str(retries))
    grid = Tuner(
        Stubborn,
        param_space={"attempts": str(tmp_path / "attempts")},
        run_config=quiet(
            tmp_path,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    assert (grid[0].metrics["score"], grid.num_errors) == (score, errors)


@pytest.mark.conformance("C-235")
def test_a_trainable_with_parameters_is_restored_with_parameters(tmp_path):
    def train(config, payload):
        if os.path.exists(config["broken"]):
            raise RuntimeError("broken")
        return {"total": sum(payload) + config["x"]}

    broken = tmp_path / "broken"
    broken.touch()
    first = Tuner(
        tune.with_parameters(train, payload=list(range(10))),
        param_space={"x": tune.grid_search([0, 1]), "broken": str(broken)},
        run_config=quiet(tmp_path),
    ).fit()
    assert first.num_errors == 2
    broken.unlink()
    again = tune.with_parameters(train, payload=[1000])
    grid = Tuner.restore(tmp_path / "exp", again, resume_errored=True).fit()
    assert [result.metrics["total"] for result in grid] == [1000, 1001]


@pytest.mark.conformance("C-236")
def test_a_moved_experiment_resumes_there_and_keeps_as_many_checkpoints(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    Tuner(
        make_counter(6),
        param_space={"broken": str(broken)},
        run_config=quiet(tmp_path / "old", checkpoint_config=CheckpointConfig(num_to_keep=2)),
    ).fit()
    broken.unlink()
    shutil.move(tmp_path / "old" / "exp", tmp_path / "new")
    grid = Tuner.restore(tmp_path / "new", make_counter(6), resume_errored=True).fit()
    assert checkpoints(grid[0]) == {"checkpoint_000004": "5", "checkpoint_000005": "6"}
    assert Path(grid[0].path).parent == tmp_path / "new"
    assert os.listdir(tmp_path / "old") == []


class Counting(Searcher):
    """Suggests 0, 1, 2, ..."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.number, self.heard = -1, []

    def suggest(self, trial_id):
        self.number += 1
        return {"x": self.number}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.heard.append(result["score"])


class Watching(FIFOScheduler):
    """Remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_trial_complete(self, tune_controller, trial, result):
        self.seen.append(trial.config["x"])


class StopsAfter(Callback):
    """Stops the experiment once, after some trials; knows it after a restore."""

    def __init__(self, trials):
        self.left = trials

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGUSR1)

    def get_state(self):
        return {"left": self.left}

    def set_state(self, state):
        self.left = state["left"]


def score(config):
    return {"score": config["x"] * 10}


@pytest.mark.conformance("C-237")
def test_the_searcher_and_the_scheduler_of_the_first_tuner_continue(tmp_path):
    Tuner(
        score,
        tune_config=TuneConfig(
            num_samples=6, search_alg=Counting(), scheduler=Watching(), max_concurrent_trials=1
        ),
        run_config=quiet(tmp_path, callbacks=[StopsAfter(2)]),
    ).fit()
    restored = Tuner.restore(tmp_path / "exp", score)
    grid = restored.fit()
    assert [result.config["x"] for result in grid] == [0, 1, 2, 3, 4, 5]
    searcher, scheduler = restored._spec.tune.search_alg, restored._spec.tune.scheduler
    while not isinstance(searcher, Counting):
        searcher = searcher.searcher
    assert searcher.heard == [0, 10, 20, 30, 40, 50]
    assert (type(scheduler), scheduler.seen) == (Watching, [0, 1, 2, 3, 4, 5])


@pytest.mark.conformance("C-238")
def test_checkpoints_are_numbered_on_after_a_restore(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    first = Tuner(
        make_counter(5),
        param_space={"broken": str(broken)},
        run_config=quiet(tmp_path, checkpoint_config=CheckpointConfig(num_to_keep=4)),
    ).fit()
    assert checkpoints(first[0]) == {"checkpoint_000000": "1", "checkpoint_000001": "2"}
    broken.unlink()
    grid = Tuner.restore(tmp_path / "exp", make_counter(5), resume_errored=True).fit()
    assert checkpoints(grid[0]) == {f"checkpoint_{i:06d}": str(i + 1) for i in (1, 2, 3, 4)}
    assert [c.path for c, _ in grid[0].best_checkpoints] == [
        f"{grid[0].path}/{n}" for n in checkpoints(grid[0])
    ]


@pytest.mark.conformance("C-241")
@pytest.mark.parametrize(("kind", "expected"), [("plain", 27), ("points", 34), ("two", 18)])
def test_a_grid_whose_driver_was_killed_has_exactly_its_trials_in_the_end(tmp_path, kind, expected):
    command = [sys.executable, str(PROGRAM), str(tmp_path), kind]
    hold = tmp_path / "hold"
    hold.write_text(str(expected * 2 // 3))
    with subprocess.Popen(command) as driver:
        while len(list(tmp_path.glob("*/*/result.json"))) < expected // 2 and driver.poll() is None:
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    hold.unlink()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    pairs = collections.Counter((config["a"], config["b"]) for _, config, _ in found)
    times = {"plain": 3, "points": 3, "two": 2}[kind]
    wanted = collections.Counter({(a, b): times for a in (1, 2, 3) for b in (1, 2, 3)})
    if kind == "points":
        wanted.update([(-1, -1), *((-1, i) for i in (1, 2, 3)), *((i, -1) for i in (1, 2, 3))])
    assert (len(found), pairs) == (expected, wanted)
    assert len({trial_id for trial_id, _, _ in found}) == expected
    assert all(score == config["a"] * config["b"] for _, config, score in found)


class SeesLastResults(Callback):
    """Interrupts the run at the third result; notes what a trial's last result is when it starts again."""

    def __init__(self, notes):
        self.notes = str(notes)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["step"] == 3 and not Path(self.notes).exists():
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_trial_restore(self, iteration, trials, trial, **info):
        Path(self.notes).write_text(json.dumps([trial.last_result, dict(trial.newest.metrics)]))


@pytest.mark.conformance("C-243")
def test_a_restored_trial_stands_at_the_metrics_of_its_checkpoint(tmp_path):
    def train(config):
        start = 0
        if tune.get_checkpoint() is not None:
            start = int(Path(tune.get_checkpoint().path, "step").read_text())
        for step in range(start + 1, 5):
            if step == 4 and start == 0:
                time.sleep(60)  # until it is stopped
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "step").write_text(str(step))
                kept = tune.Checkpoint.from_directory(directory) if step == 2 else None
                tune.report({"step": step}, checkpoint=kept)

    notes = tmp_path / "notes"
    Tuner(train, run_config=quiet(tmp_path, callbacks=[SeesLastResults(notes)])).fit()
    assert not notes.exists()
    grid = Tuner.restore(tmp_path / "exp", train).fit()
    last, at_checkpoint = json.loads(notes.read_text())
    assert (last, last["step"]) == (at_checkpoint, 2)
    assert [row["step"] for row in grid[0].metrics_history] == [1, 2, 3, 4]


@pytest.mark.conformance("C-243")
def test_a_trial_that_ends_without_a_report_after_a_restore_ended_at_its_checkpoint(tmp_path):
    def train(config):
        if tune.get_checkpoint() is not None:
            return
        for step in (1, 2, 3):
            with tempfile.TemporaryDirectory() as directory:
                kept = tune.Checkpoint.from_directory(directory) if step == 2 else None
                tune.report({"step": step}, checkpoint=kept)
        raise RuntimeError("broken")

    Tuner(train, run_config=quiet(tmp_path)).fit()
    grid = Tuner.restore(tmp_path / "exp", train, resume_errored=True).fit()
    later = Tuner.restore(tmp_path / "exp", train).get_results()
    for found in (grid, later):
        assert (found[0].metrics["step"], found.num_errors) == (2, 0)
        assert [row["step"] for row in found[0].metrics_history] == [1, 2]
