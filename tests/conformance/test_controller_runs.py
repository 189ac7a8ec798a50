"""Check the controller with real processes."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.conformance.trainables import (
    ALL_CPUS,
    Counter,
    Interrupts,
    checkpoints,
    column,
    fit,
    report_steps,
)

from muster import tune
from muster.errors import TuneError
from muster.host.processes import find
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.tune import Callback, CheckpointConfig, SyncConfig


@pytest.mark.conformance("C-001")
def test_a_checkpoint_of_the_first_iteration_is_of_that_iteration(tmp_path):
    run = {"stop": {"training_iteration": 1}, "checkpoint_config": CheckpointConfig(checkpoint_frequency=1)}
    (result,) = fit(Counter, tmp_path, run=run)
    ((_, metrics),) = result.best_checkpoints
    names = ("training_iteration", "iterations_since_restore", "at")
    assert [[seen[name] for name in names] for seen in (metrics, result.metrics)] == [[1, 1, 1]] * 2


class EverySecond(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        result["should_checkpoint"] = result["training_iteration"] % 2 == 0


@pytest.mark.conformance("C-010")
def test_a_callback_may_ask_for_checkpoints(tmp_path):
    run = {
        "stop": {"training_iteration": 6},
        "callbacks": [EverySecond()],
        "checkpoint_config": CheckpointConfig(checkpoint_at_end=False),
    }
    (result,) = fit(Counter, tmp_path, run=run)
    assert [metrics["at"] for _, metrics in result.best_checkpoints] == [2, 4, 6]
    assert len(checkpoints(result)) == 3


class Broken(MemoryFileSystem):
    """Takes the first file, the proof that it can be written to, and then fails or hangs."""

    cachable = False
    gate: threading.Event | None = None

    def put_file(self, lpath, rpath, **options):
        if self.gate is not None:
            self.gate.wait(20.0)
        raise ConnectionError("reset by peer")


@pytest.mark.conformance("C-011", "C-012")
@pytest.mark.slow
@pytest.mark.parametrize("hangs", [True, False], ids=["c011", "c012"])
def test_a_storage_that_hangs_or_fails_is_logged_and_costs_nothing_else(tmp_path, monkeypatch, caplog, hangs):
    monkeypatch.setenv("HOME", str(tmp_path))
    filesystem = Broken()
    filesystem.gate = threading.Event() if hangs else None
    run = {
        "storage_path": "/remote",
        "storage_filesystem": filesystem,
        "sync_config": SyncConfig(sync_timeout=0.5),
    }
    grid = fit(report_steps, tmp_path, run=run)
    if hangs:
        filesystem.gate.set()
    assert (column(grid, "step"), grid.num_errors) == ([2], 0)
    assert "SyncConfig(sync_timeout=...)" in caplog.text


@pytest.mark.conformance("C-014")
def test_one_process_serves_one_trial_after_the_other_and_none_is_left(tmp_path):
    space = {"i": tune.grid_search([0, 1, 2, 3])}
    run = {"stop": {"training_iteration": 1}}
    grid = fit(tune.with_resources(Counter, ALL_CPUS), tmp_path, space, run=run, reuse_actors=True)
    (pid,) = set(column(grid, "process"))
    assert find(pid) is None


class Notes(Callback):
    def __init__(self):
        self.hooks = []

    def setup(self, **info):
        self.hooks.append("setup")

    def on_step_begin(self, **info):
        self.hooks.append("on_step_begin")

    def on_step_end(self, **info):
        self.hooks.append("on_step_end")

    def on_experiment_end(self, **info):
        self.hooks.append("on_experiment_end")


@pytest.mark.conformance("C-038")
def test_setup_comes_first_and_the_end_last(tmp_path):
    notes = Notes()
    fit(report_steps, tmp_path, run={"callbacks": [notes]})
    assert (notes.hooks[0], notes.hooks[-1]) == ("setup", "on_experiment_end")
    assert notes.hooks[1:-1] == ["on_step_begin", "on_step_end"] * (len(notes.hooks) // 2 - 1)


@pytest.mark.conformance("C-040")
def test_ctrl_c_saves_what_there_is_and_ends(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    run = {"callbacks": [Interrupts(5, signal.SIGINT)]}
    grid = fit(report_steps, tmp_path, {"steps": 1_000_000}, run=run)
    assert signal.getsignal(signal.SIGINT) is before
    (path,) = (tmp_path / "e").glob("*/result.json")
    logged = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    with open_trials(tmp_path / "e") as reader:
        (trial,) = reader.trials()
    assert logged == list(range(len(logged)))
    assert trial.result["step"] == logged[-1] == grid[0].metrics["step"] >= 4
    assert (tmp_path / "e" / STORE_NAME).stat().st_size > 0


@pytest.mark.conformance("C-040")
def test_a_thread_can_run_an_experiment_without_a_handler(tmp_path):
    found, handlers = [], []

    class Looks(Callback):
        def on_trial_result(self, **info):
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(
        target=lambda: found.append(fit(report_steps, tmp_path, run={"callbacks": [Looks()]}))
    )
    thread.start()
    thread.join()
    assert column(found[0], "step") == [2]
    assert handlers == [before] * 3


class Breaks(Callback):
    def on_trial_result(self, **info):
        raise KeyError("the callback's own slip")


@pytest.mark.conformance("C-041")
def test_an_exception_of_a_callback_ends_fit_with_its_name(tmp_path):
    with pytest.raises(TuneError, match=r"(?s)Breaks.*KeyError.*own slip"):
        fit(report_steps, tmp_path, run={"callbacks": [Breaks()]})
