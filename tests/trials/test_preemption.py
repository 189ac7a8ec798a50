"""What a trial still does on a machine that will be taken; whole runs are in tests/sim/tune."""

from __future__ import annotations

import pytest
from tests.trials.scripted import Stage, steps, trials

from muster.session.session import PreemptionInfo
from muster.trials.events import TrialExited, TrialFailure, TrialFailureKind, TrialNoticed
from muster.trials.preemption import Preemptions, can_finish, rest_of

Kind = TrialFailureKind


def trial(done=4, *, slowest_s=10.0, save_s=None, **criterion):
    (made,) = trials(1, stopping_criterion=criterion, save_s=save_s)
    for iteration in range(1, done + 1):
        seconds = slowest_s if iteration == 1 else slowest_s / 2
        total = slowest_s * iteration
        result = {"training_iteration": iteration, "time_this_iter_s": seconds, "time_total_s": total}
        made.note_result(result, result, 0.0)
    return made


@pytest.mark.parametrize(
    ("made", "rest_s"),
    [
        (trial(training_iteration=10), 60.0),
        (trial(time_total_s=55.0), 25.0),
        (trial(training_iteration=10, time_total_s=55.0), 25.0),
        (trial(training_iteration=2), 0.0),
        (trial(), None),
        (trial(0, training_iteration=10), None),
        (trial(loss=0.1), None),
    ],
)
def test_the_rest_of_a_trial_follows_from_its_criteria_at_its_slowest_pace(made, rest_s):
    assert rest_of(made) == rest_s


@pytest.mark.parametrize(
    ("left_s", "save_s", "finishes"),
    [(75.0, None, True), (74.0, None, False), (76.0, 2.0, False), (float("inf"), None, False)],
)
def test_a_trial_finishes_in_time_only_with_a_margin(left_s, save_s, finishes):
    assert can_finish(trial(save_s=save_s, training_iteration=10), left_s) is finishes


def announced(deadline=100.0, kind="interruption"):
    made = Preemptions()
    made.note("t0", PreemptionInfo(deadline, kind, "AWS", "n1"))
    return made


def test_a_trial_leaves_a_node_that_is_emptied_at_once_unless_it_is_nearly_done():
    """Others stay where they can finish before the deadline."""
    long, short = trial(training_iteration=10), trial(9, slowest_s=8.0, training_iteration=10)
    emptied, drained = announced(600.0, "consolidation"), announced(600.0, "drain")
    assert [each.leaves(one, 0.0) for each in (drained, emptied) for one in (long, short)] == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        (Kind.NODE_LOST, 10.0, Kind.PREEMPTED),
        (Kind.SILENT, 10.0, Kind.PREEMPTED),
        (Kind.KILLED, 96.0, Kind.PREEMPTED),
        (Kind.KILLED, 10.0, Kind.KILLED),  # out of memory, say
        (Kind.USER_ERROR, 99.0, Kind.USER_ERROR),
    ],
)
def test_a_process_that_ends_as_announced_was_preempted(kind, at, expected):
    failure = TrialFailure(kind=kind, message="why")
    assert announced().explained(trial(), failure, at).kind is expected
    assert Preemptions().explained(trial(), failure, at) is failure


def test_a_loss_is_explained_once():
    slow, made = trial(save_s=30.0), announced()
    assert made.loss_of(slow, 60.0) is None
    assert " 30.0 s" in (made.loss_of(slow, 80.0) or "")
    assert made.loss_of(slow, 81.0) is None


def test_what_is_announced_survives_a_snapshot():
    made, other = announced(), Preemptions()
    made.unsavable.add("t0")
    other.load(made.saved())
    assert other.saved() == made.saved()
    made.forget("t0")
    assert (made.saved(), Preemptions().saved()) == (Preemptions().saved(), made.saved())


def noticed_stage(*, deadline=1000.0, **settings):
    """One trial of six steps that has reported once, on a machine that will be taken."""
    stage = Stage(steps(6), trials(1), **settings)
    for _ in range(3):
        stage.step()
    stage.state.handle(TrialNoticed(trial_id="t0", at=stage.engine.now, info=PreemptionInfo(deadline)))
    return stage


def test_a_saved_trial_waits_again_and_nobody_hears_of_a_failure():
    stage = noticed_stage().run()
    names = [type(fact).__name__ for fact in stage.facts]
    life = ["TrialNoticed", "CheckpointSaved", "TrialExited", "TrialAdmitted", "TrialStarted"]
    assert [name for name in names if name != "TrialReported"][4:9] == life
    assert stage.scheduler.told == [("add", "t0"), ("complete", "t0")]
    assert (stage.statuses, stage.trial("t0").num_failures) == ({"t0": "TERMINATED"}, 0)
    assert [hook for hook in stage.hooks.fired if hook[0] == "on_trial_failure"] == []


def test_a_trial_that_has_returned_while_it_was_to_be_moved_is_complete():
    stage = noticed_stage()
    moved = stage.state.advance(5000.0)
    stage.state.handle(TrialExited(trial_id="t0", at=5001.0, is_done=True))
    assert [type(command).__name__ for command in moved] == ["StopTrial"]
    assert stage.statuses == {"t0": "TERMINATED"}


def test_a_step_that_no_checkpoint_holds_is_not_new_to_the_scheduler():
    stage = noticed_stage()
    stage.state.advance(5000.0)
    stage.state.handle(TrialExited(trial_id="t0", at=5001.0))
    assert stage.scheduler.told == [("add", "t0"), ("error", "t0"), ("add", "t0")]
    assert stage.statuses == {"t0": "PENDING"}


def test_an_experiment_that_ends_ends_a_trial_that_is_being_moved():
    stage = noticed_stage()
    stage.state.advance(5000.0)
    stage.state.end(5001.0)
    stage.state.handle(TrialExited(trial_id="t0", at=5002.0))
    assert stage.statuses == {"t0": "TERMINATED"}


def test_a_notice_for_an_unknown_trial_is_ignored():
    stage = noticed_stage()
    assert stage.state.handle(TrialNoticed(trial_id="x", at=1.0, info=PreemptionInfo(5.0))) == []
