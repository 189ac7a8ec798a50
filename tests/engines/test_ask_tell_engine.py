"""AskTellEngine: the lock-step protocol without processes."""

from __future__ import annotations

import pytest

from muster.base.clock import ManualClock
from muster.engines.ask_tell_engine import AskTellEngine
from muster.session.checkpoint import Checkpoint
from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.placement_group import PlacementGroupFactory


@pytest.fixture
def engine():
    return AskTellEngine(ManualClock())


def start(engine, tmp_path, **more):
    engine.submit(
        StartTrial(
            trial_id="t",
            trial_name="ask_t",
            trainable_name="ask",
            config={"x": 1},
            resources=PlacementGroupFactory([{"CPU": 1}]),
            trial_dir=str(tmp_path / "t"),
            experiment_name="e",
            **more,
        )
    )


def test_a_trial_starts_reports_and_stops_in_order(engine, tmp_path):
    start(engine, tmp_path)
    engine.report("t", {"y": 1}, done=False, checkpoint=None)
    engine.submit(ContinueTrial(trial_id="t"))
    engine.report("t", {"y": 2}, done=True, checkpoint=None)
    engine.submit(StopTrial(trial_id="t"))
    events = engine.poll(5.0)
    assert [type(event) for event in events] == [TrialStarted, TrialReported, TrialReported, TrialExited]
    told = [
        (event.result["y"], event.result["training_iteration"], event.result["done"]) for event in events[1:3]
    ]
    assert told == [(1, 1, False), (2, 2, True)]
    assert (engine.running, list(engine.recalled), engine.poll(0.0), engine.is_quiet) == ({}, ["t"], [], True)


def test_a_save_is_answered_with_what_the_last_report_brought(engine, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model").write_bytes(b"1")
    start(engine, tmp_path)
    engine.report("t", {"y": 1}, done=False, checkpoint=Checkpoint(str(tmp_path / "own")))
    engine.submit(SaveTrial(trial_id="t"))
    engine.report("t", {"y": 2}, done=False, checkpoint=None)
    engine.submit(SaveTrial(trial_id="t"))
    saves = [event.checkpoint for event in engine.poll(0.0) if isinstance(event, CheckpointSaved)]
    assert (saves[0].path, saves[0].index, saves[0].metrics["y"]) == (
        str(tmp_path / "t/checkpoint_000000"),
        0,
        1,
    )
    assert saves[1] is None


def test_a_failure_keeps_the_exception(engine, tmp_path):
    start(engine, tmp_path)
    engine.fail("t", ValueError("wrong"))
    failure = engine.poll(0.0)[-1].failure
    assert (failure.kind, failure.exception is not None) == (TrialFailureKind.USER_ERROR, True)
    assert "wrong" in failure.message


def test_commands_for_unknown_trials_are_ignored(engine):
    for command in (ContinueTrial(trial_id="x"), SaveTrial(trial_id="x"), StopTrial(trial_id="x")):
        engine.submit(command)
    assert engine.poll(0.0) == []


def test_a_result_that_cannot_be_taken_leaves_nothing_behind(engine, tmp_path):
    start(engine, tmp_path)
    engine.poll(0.0)
    gone = Checkpoint(str(tmp_path / "gone"))
    with pytest.raises(OSError, match="gone"):
        engine.report("t", {"y": 1}, done=False, checkpoint=gone)
    assert (engine.poll(0.0), sorted(path.name for path in (tmp_path / "t").iterdir())) == ([], [])
    engine.report("t", {"y": 1}, done=False, checkpoint=None)
    assert engine.poll(0.0)[0].result["training_iteration"] == 1
