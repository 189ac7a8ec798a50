"""Conformance list, 10.1: the controller with real processes."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.conformance.scenes import (
    ALL_CPUS,
    Counter,
    Interrupts,
    checkpoints,
    column,
    fit,
    report_steps,
    resumed,
)

from muster import tune
from muster.engines.local.surroundings import process_state
from muster.errors import TuneError
from muster.stores.trial_reading import STORE_NAME, open_trials
from muster.tune import Callback, CheckpointConfig, SyncConfig


def test_c001_a_checkpoint_of_the_first_iteration_is_of_that_iteration(tmp_path):
    run = {"stop": {"training_iteration": 1}, "checkpoint_config": CheckpointConfig(checkpoint_frequency=1)}
    (result,) = fit(Counter, tmp_path, run=run)
    ((_, metrics),) = result.best_checkpoints
    names = ("training_iteration", "iterations_since_restore", "at")
    assert [[seen[name] for name in names] for seen in (metrics, result.metrics)] == [[1, 1, 1]] * 2


def test_c005_the_last_two_checkpoints_remain_also_after_a_resume(tmp_path):
    run = {
        "stop": {"training_iteration": 5},
        "checkpoint_config": CheckpointConfig(num_to_keep=2, checkpoint_frequency=1),
        "callbacks": [Interrupts(3)],
    }
    (result,) = fit(Counter, tmp_path, run=run)
    assert result.metrics["training_iteration"] == 3
    (result,) = resumed(tmp_path, Counter).fit()
    assert (result.metrics["training_iteration"], result.metrics["at"]) == (5, 5)
    assert [metrics["at"] for _, metrics in result.best_checkpoints] == [4, 5]
    assert checkpoints(result) == ["checkpoint_000003", "checkpoint_000004"]


class EverySecond(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        result["should_checkpoint"] = result["training_iteration"] % 2 == 0


def test_c010_a_callback_may_ask_for_checkpoints(tmp_path):
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


@pytest.mark.parametrize("hangs", [True, False], ids=["c011", "c012"])
def test_c011_c012_a_storage_that_hangs_or_fails_is_told_and_costs_nothing_else(
    tmp_path, monkeypatch, caplog, hangs
):
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
    assert "not everything was copied to" in caplog.text


def test_c014_one_process_serves_one_trial_after_the_other_and_none_is_left(tmp_path):
    space = {"i": tune.grid_search([0, 1, 2, 3])}
    run = {"stop": {"training_iteration": 1}}
    grid = fit(tune.with_resources(Counter, ALL_CPUS), tmp_path, space, run=run, reuse_actors=True)
    (pid,) = set(column(grid, "process"))
    assert process_state(pid) == ("", 0)


def fails_if_told(config):
    tune.report({"step": 1})
    if config["fails"] and not os.path.exists(config["mended"]):
        raise RuntimeError("on purpose")
    tune.report({"step": 2})


def failing(tmp_path):
    space = {"fails": tune.grid_search([False, True]), "mended": str(tmp_path / "mended")}
    grid = fit(fails_if_told, tmp_path, space)
    assert (column(grid, "step"), grid.num_errors) == ([2, 1], 1)
    (tmp_path / "mended").touch()


def test_c020_an_errored_trial_stays_or_is_run_again(tmp_path):
    failing(tmp_path)
    skipped = resumed(tmp_path, fails_if_told).fit()
    assert (skipped.num_errors, column(skipped, "step")) == (1, [2, 1])
    again = resumed(tmp_path, fails_if_told, resume_errored=True).fit()
    assert (again.num_errors, column(again, "step")) == (0, [2, 2])


class InterruptsThird(Callback):
    """Ends the run when the third trial has reported once."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if trial.config["i"] == 2:
            os.kill(os.getpid(), signal.SIGUSR1)


def test_c021_c022_only_the_trial_that_ran_runs_again_and_all_are_known(tmp_path):
    def train(config):
        tune.report({"step": 1})
        if config["i"] == 1:
            raise RuntimeError("on purpose")
        tune.report({"step": 2})

    space = {"i": tune.grid_search([0, 1, 2])}
    trainable = tune.with_resources(train, ALL_CPUS)
    fit(trainable, tmp_path, space, run={"callbacks": [InterruptsThird()]}, max_concurrent_trials=1)
    with open_trials(tmp_path / "e") as reader:
        before = [(trial.status, trial.result["training_iteration"]) for trial in reader.trials()]
    assert before == [("TERMINATED", 2), ("ERROR", 1), ("RUNNING", 1)]
    grid = resumed(tmp_path, trainable).fit()
    assert [(result.metrics["step"], result.error is None) for result in grid] == [
        (2, True),
        (1, False),
        (2, True),
    ]
    rows = [[row["step"] for row in result.metrics_history] for result in grid]
    assert rows == [[1, 2], [1], [1, 2]]  # it had no checkpoint: its first row was replaced


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


def test_c038_setup_comes_first_and_the_end_last(tmp_path):
    notes = Notes()
    fit(report_steps, tmp_path, run={"callbacks": [notes]})
    assert (notes.hooks[0], notes.hooks[-1]) == ("setup", "on_experiment_end")
    assert notes.hooks[1:-1] == ["on_step_begin", "on_step_end"] * (len(notes.hooks) // 2 - 1)


def test_c040_ctrl_c_saves_what_there_is_and_ends(tmp_path):
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


def test_c040_a_thread_can_run_an_experiment_without_a_handler(tmp_path):
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


def test_c041_an_exception_of_a_callback_ends_fit_with_its_name(tmp_path):
    with pytest.raises(TuneError, match=r"(?s)Breaks.*KeyError.*own slip"):
        fit(report_steps, tmp_path, run={"callbacks": [Breaks()]})


class Net:
    """An object that cannot be compared; `made` says by which run."""

    def __init__(self, name, made):
        self.name, self.made = name, made


def space_made(run):
    return {
        "fixed": {"net": Net("fixed", run), "depth": 2},
        "option": tune.grid_search([Net("a", run), Net("b", run)]),
        "drawn": {"layers": tune.choice([Net("c", run), Net("d", run), 7])},
        "wrapped": tune.choice([{"net": Net("e", run), "width": 1}, {"net": Net("f", run), "width": 2}]),
        "derived": tune.sample_from(lambda config: Net(config["option"].name * 2, run)),
        "number": tune.sample_from(lambda config: 0.5),
        "rate": tune.uniform(0, 1),
    }


def described(config):
    """Names of objects with the run that made them, and everything else as it is."""
    if isinstance(config, dict):
        return {key: described(value) for key, value in config.items()}
    return (config.name, config.made) if hasattr(config, "made") else config


def made_by(config, run):
    """The same, had this run made all of its objects."""
    if isinstance(config, dict):
        return {key: made_by(value, run) for key, value in config.items()}
    return (config[0], run) if isinstance(config, tuple) else config


def says_config(config):
    tune.report({"seen": described(config)})
    tune.report({"seen": described(config)})


def test_c019_old_trials_get_the_new_objects_of_the_same_space(tmp_path, caplog):
    run = {"callbacks": [Interrupts(1)]}
    settings = {"num_samples": 4, "max_concurrent_trials": 2}
    before = fit(says_config, tmp_path, space_made(1), run=run, **settings)
    assert 0 < len(before) <= 8 and before.num_terminated < 8
    grid = resumed(tmp_path, says_config, param_space=space_made(2)).fit()
    assert (len(grid), grid.num_errors) == (8, 0)
    known = {result.metrics["trial_id"]: described(result.config) for result in before}
    for result in grid:
        config = described(result.config)
        assert config == made_by(config, 2)
        if result.metrics["trial_id"] in known:
            assert config == made_by(known[result.metrics["trial_id"]], 2)
    again = [result.metrics["seen"] for result in grid if result.metrics["trial_id"] not in known]
    assert again == [made_by(seen, 2) for seen in again]
    assert "does not repeat itself" not in caplog.text
