"""Check results that a trial sends together (TUNE_RESULT_BUFFER_LENGTH)."""

from __future__ import annotations

import os

import pytest
from tests.conformance.trainables import Counter, checkpoints, column, fit

from muster import tune
from muster.base.framing import FrameReader, unpack
from muster.engines.worker.handle import TrialRun
from muster.trials.events import StartTrial
from muster.trials.model import CheckpointPolicy
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import Settings
from muster.tune import Callback, CheckpointConfig
from muster.tune.execution.assemble import checked_buffers
from muster.tune.schedulers import FIFOScheduler, TrialScheduler

pytestmark = pytest.mark.slow

NEVER = CheckpointConfig(checkpoint_at_end=False)


class Tells(Callback):
    """Tells records, at each result, how far the trial is by then."""

    def __init__(self):
        self.ahead, self.saved = [], []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        place = os.path.join(trial.local_path, "at")
        with open(place, encoding="utf-8") as stream:
            self.ahead.append(int(stream.read()) - result["training_iteration"])

    def on_trial_save(self, trial, **info):
        self.saved.append(trial.last_result["training_iteration"])


class Notes(Counter):
    """Notes writes how far it is."""

    def step(self):
        with open("at", "w", encoding="utf-8") as stream:
            stream.write(str(self.at + 1))
        return super().step()


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setenv("TUNE_RESULT_BUFFER_LENGTH", "7")


@pytest.fixture
def seven(few, monkeypatch):
    monkeypatch.setenv("TUNE_RESULT_BUFFER_MIN_TIME_S", "100.5")


@pytest.mark.conformance("C-006")
def test_a_buffer_ends_where_a_checkpoint_is_due(tmp_path, seven):
    tells = Tells()
    policy = CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=False)
    run = {"stop": {"training_iteration": 9}, "callbacks": [tells], "checkpoint_config": policy}
    (result,) = fit(Notes, tmp_path, run=run)
    assert tells.saved == [3, 6, 9]
    assert tells.ahead == [2, 1, 0] * 3
    assert [metrics["at"] for _, metrics in result.best_checkpoints] == [3, 6, 9]
    assert len(checkpoints(result)) == 3


@pytest.mark.conformance("C-006")
def test_without_checkpoints_all_seven_come_together(tmp_path, seven):
    tells = Tells()
    run = {"stop": {"training_iteration": 10}, "callbacks": [tells], "checkpoint_config": NEVER}
    (result,) = fit(Notes, tmp_path, run=run)
    assert (result.metrics["at"], len(result.metrics_history)) == (10, 10)
    assert tells.ahead == [6, 5, 4, 3, 2, 1, 0, 6, 5, 4]


def test_without_a_least_time_few_trials_send_each_result_at_once(tmp_path, few):
    tells = Tells()
    run = {"stop": {"training_iteration": 4}, "callbacks": [tells], "checkpoint_config": NEVER}
    fit(Notes, tmp_path, run=run)
    assert tells.ahead == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("running", "least", "most", "expected"),
    [
        (1, 0.0, 100.0, 0.0),
        (25, 0.0, 100.0, 2.0),
        (25, 0.0, 0.5, 0.5),
        (9, 0.25, 100.0, 0.25),
        (5000, 0, 100, 100),
    ],
)
def test_results_wait_a_second_per_ten_trials_within_the_limits(running, least, most, expected):
    names = dict.fromkeys(("trial_id", "trial_name", "trainable_name", "trial_dir", "experiment_name"), "x")
    limits = (7, least, most, 0)
    run = TrialRun(
        StartTrial(config={}, resources=PlacementGroupFactory([{"CPU": 1}]), buffering=limits, **names)
    )
    ((_, payload),) = FrameReader().feed(run.answer(running))
    assert unpack(payload) == expected


class NoBuffers(FIFOScheduler):
    _supports_buffered_results = False


@pytest.mark.parametrize(
    ("scheduler", "policy", "length", "words"),
    [
        (FIFOScheduler(), {}, 7, []),
        (NoBuffers(), {}, 1, ["NoBuffers"]),
        (FIFOScheduler(), {"at_end": True}, 1, ["checkpoint_at_end"]),
        (FIFOScheduler(), {"frequency": 3}, 3, ["checkpoint_frequency=3"]),
    ],
)
def test_what_limits_buffers_is_named_in_a_warning(caplog, scheduler, policy, length, words):
    settings = Settings(name="x", result_buffer=(7, 0.0, 1.0))
    made = checked_buffers(settings, scheduler, CheckpointPolicy(**policy))
    assert made.result_buffer == (length, 0.0, 1.0)
    assert [word in record.getMessage() for word, record in zip(words, caplog.records, strict=True)] == [
        True for _ in words
    ]


@pytest.mark.conformance("C-007")
def test_a_checkpoint_at_the_end_turns_buffers_off(tmp_path, seven):
    tells = Tells()
    policy = CheckpointConfig(checkpoint_at_end=True)
    run = {"stop": {"training_iteration": 4}, "callbacks": [tells], "checkpoint_config": policy}
    (result,) = fit(Notes, tmp_path, run=run)
    assert tells.ahead == [0, 0, 0, 0]
    assert checkpoints(result) == ["checkpoint_000000"]
    assert result.best_checkpoints[0][1]["at"] == 4


def ends(config):
    for step in range(1, 11):
        tune.report({"step": step})
    if config["fails"]:
        raise RuntimeError("at the end")


def test_nothing_that_waited_is_lost_when_a_function_returns_or_fails(tmp_path, seven):
    grid = fit(ends, tmp_path, {"fails": tune.grid_search([False, True])})
    assert [[row["step"] for row in result.metrics_history] for result in grid] == [list(range(1, 11))] * 2
    assert (grid.num_errors, str(grid.errors[0])) == (1, "at the end")


class PausesOnce(FIFOScheduler):
    """Pauses each trial at its third result, in the middle of a buffer."""

    def on_trial_result(self, tune_controller, trial, result):
        is_third = result["training_iteration"] == 3
        return TrialScheduler.PAUSE if is_third else TrialScheduler.CONTINUE


def test_a_pause_in_the_middle_of_a_buffer_takes_the_rest_along(tmp_path, seven):
    run = {"stop": {"training_iteration": 12}, "checkpoint_config": NEVER}
    grid = fit(Counter, tmp_path, {"i": tune.grid_search([0, 1, 2])}, run=run, scheduler=PausesOnce())
    assert (column(grid, "at"), grid.num_errors) == ([12] * 3, 0)
    assert [[row["at"] for row in result.metrics_history] for result in grid] == [list(range(1, 13))] * 3
    assert column(grid, "iterations_since_restore") == [5] * 3
