"""Check stoppers, loggers, callbacks and two schedulers in whole experiments."""

from __future__ import annotations

import csv
import json
import pickle
import time
from pathlib import Path

import pytest

from muster import tune
from muster.tune import Callback, CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner
from muster.tune.schedulers import ASHAScheduler
from muster.tune.stopper import (
    ExperimentPlateauStopper,
    MaximumIterationStopper,
    TimeoutStopper,
    TrialPlateauStopper,
)

pytestmark = pytest.mark.slow


def quiet(tmp_path, **more):
    return RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, **more)


def forever(config):
    with Path(config["begun"]).open("a") as file:
        file.write("x")
    while True:
        tune.report({"score": 1})
        time.sleep(0.01)


@pytest.mark.conformance("C-190")
def test_a_budget_that_is_used_up_stays_so_after_a_restore(tmp_path):
    begun = tmp_path / "begun"
    begun.touch()
    first = Tuner(
        forever,
        param_space={"begun": str(begun)},
        tune_config=TuneConfig(num_samples=50),
        run_config=quiet(tmp_path, stop=TimeoutStopper(0.5)),
    ).fit()
    before = begun.read_text()
    assert len(before) < 50
    again = Tuner.restore(tmp_path / "exp", forever).fit()
    assert (begun.read_text(), len(again)) == (before, len(first))


@pytest.mark.conformance("C-190")
def test_an_expired_stopper_stays_expired_when_it_is_pickled():
    stopper = TimeoutStopper(0)
    assert stopper.stop_all()
    assert pickle.loads(pickle.dumps(stopper)).stop_all()


def series(config):
    """Falls until its sixth result, then stands still."""
    for step in range(1, 30):
        tune.report({"m": max(10 - step, 4), "step": step})


@pytest.mark.conformance("C-191", "C-192")
@pytest.mark.parametrize(
    ("stopper", "at"),
    [
        (TrialPlateauStopper("m", std=0.01, num_results=4), 9),
        (TrialPlateauStopper("m", std=0.01, num_results=4, grace_period=12), 12),
        (TrialPlateauStopper("m", metric_threshold=5, mode="min"), 9),
        (MaximumIterationStopper(3), 3),
        (ExperimentPlateauStopper("m", std=0.001, top=3, patience=2), 9),
    ],
)
def test_stoppers_end_a_real_trial_at_the_very_result(tmp_path, stopper, at):
    grid = Tuner(series, run_config=quiet(tmp_path, stop=stopper)).fit()
    assert (grid[0].metrics["step"], grid.num_terminated) == (at, 1)
    assert [row["step"] for row in grid[0].metrics_history] == list(range(1, at + 1))


class CrashesFirst(tune.Trainable):
    """Its process dies before the first result, the first time; later once more after the third."""

    def setup(self, config):
        self.number, self.place = 0, Path(config["place"])

    def step(self):
        self._once(0)
        self._once(3)
        self.number += 1
        return {"number": self.number, "done": self.number == 5}

    def _once(self, number):
        mark = self.place / f"crashed_{number}"
        if self.number == number and not mark.exists():
            mark.touch()
            raise RuntimeError(f"crash at {number}")

    def save_checkpoint(self, directory):
        return {"number": self.number}

    def load_checkpoint(self, state):
        self.number = state["number"]


@pytest.mark.conformance("C-200")
def test_logs_of_a_trial_that_crashed_and_began_again_are_whole(tmp_path):
    grid = Tuner(
        CrashesFirst,
        param_space={"place": str(tmp_path)},
        run_config=quiet(
            tmp_path,
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()
    assert grid.num_errors == 0
    with Path(grid[0].path, "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == ["1", "2", "3", "4", "5"]
    lines = Path(grid[0].path, "result.json").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 4, 5]
    assert len(list(Path(grid[0].path).glob("events.out.tfevents.*"))) >= 1


class Noting(Callback):
    """Named in the environment; writes into the experiment's directory."""

    def on_trial_complete(self, iteration, trials, trial, **info):
        Path(trial.local_path, f"{type(self).__name__}.txt").touch()


class NotingToo(Noting):
    pass


class Broken(Callback):
    def __init__(self, needed):
        pass


def once(config):
    return {"score": 1}


@pytest.mark.conformance("C-202")
def test_callbacks_named_in_the_environment_are_there(tmp_path, monkeypatch):
    names = f" {__name__}.Noting , ,{__name__}.NotingToo,"
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", names)
    grid = Tuner(once, run_config=quiet(tmp_path)).fit()
    assert {path.name for path in Path(grid[0].path).glob("*.txt")} == {"Noting.txt", "NotingToo.txt"}


@pytest.mark.conformance("C-202")
@pytest.mark.parametrize(
    ("name", "cause"),
    [(f"{__name__}.Broken", TypeError), (f"{__name__}.Nothing", AttributeError), ("nowhere", ValueError)],
)
def test_a_callback_that_cannot_be_made_is_reported_with_its_cause(tmp_path, monkeypatch, name, cause):
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", name)
    with pytest.raises(ValueError, match="Failed to import callback from ") as caught:
        Tuner(once, run_config=quiet(tmp_path)).fit()
    assert isinstance(caught.value.__context__, cause)  # kept, and not shown: the sentence has its text


def scored(config):
    for step in range(1, 9):
        value = config["value"]
        tune.report({"score": value, "step": step} if value is not None else {"step": step, "score": -1.0})


@pytest.mark.conformance("C-154", "C-155")
def test_asha_with_odd_scores_ends(tmp_path):
    grid = Tuner(
        scored,
        param_space={"value": tune.grid_search([float("nan"), float("inf"), float("-inf"), 2.0, None])},
        tune_config=TuneConfig(
            metric="score", mode="max", scheduler=ASHAScheduler(max_t=6, grace_period=2, reduction_factor=2)
        ),
        run_config=quiet(tmp_path),
    ).fit()
    assert (len(grid), grid.num_errors) == (5, 0)
    assert max(result.metrics["step"] for result in grid) == 6
    assert all(result.metrics["step"] in (2, 4, 6) for result in grid)
