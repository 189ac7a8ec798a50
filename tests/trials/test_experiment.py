"""Whole experiments through the pure core."""

from __future__ import annotations

import pytest
from tests.trials.scripted import First, ListSearch, ScriptedEngine, Stage, steps, trials

from muster.errors import TuneError
from muster.trials.events import (
    CapacityChanged,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
)
from muster.trials.model import CheckpointPolicy, CheckpointRef, FailurePolicy
from muster.trials.plugins import CONTINUE, PAUSE, STOP


def test_trials_run_to_their_end_and_everybody_is_told_once():
    stage = Stage(steps(3), trials(2)).run()
    assert stage.statuses == {"t0": "TERMINATED", "t1": "TERMINATED"}
    assert [stage.trial(t).last_result["training_iteration"] for t in ("t0", "t1")] == [3, 3]
    assert sorted(stage.search.completed) == [("t0", 3, False), ("t1", 3, False)]
    assert sorted(stage.search.results) == [(t, i) for t in ("t0", "t1") for i in (1, 2, 3)]
    assert sorted(stage.scheduler.told) == sorted((w, t) for w in ("add", "complete") for t in ("t0", "t1"))
    assert stage.trial("t0").last_result["done"] is True


def test_a_criterion_that_cannot_be_compared_ends_the_experiment_as_in_ray():
    stage = Stage(steps(9), trials(1, stopping_criterion={"training_iteration": {"a": 1}}))
    with pytest.raises(TuneError) as raised:
        stage.run()
    assert isinstance(raised.value, TypeError)


def test_never_more_at_once_than_there_is_room_for():
    stage = Stage(steps(2), trials(7), capacity={"CPU": 3}).run()
    assert (set(stage.statuses.values()), stage.engine.most_at_once) == ({"TERMINATED"}, 3)


@pytest.mark.conformance("C-024")
def test_a_criterion_ends_a_trial_and_the_searcher_sees_its_last_result_only_at_completion():
    stage = Stage(steps(9), trials(1, stopping_criterion={"training_iteration": 2})).run()
    assert (stage.search.results, stage.search.completed) == ([("t0", 1)], [("t0", 2, False)])


@pytest.mark.conformance("C-025")
def test_a_scheduler_that_always_stops():
    stage = Stage(steps(9), trials(1), scheduler=First(lambda trial, result: STOP)).run()
    assert (stage.search.results, stage.search.completed) == ([], [("t0", 1, False)])
    assert stage.trial("t0").last_result["training_iteration"] == 1


@pytest.mark.conformance("C-017")
@pytest.mark.parametrize(("max_failures", "failures"), [(0, 1), (1, 2), (2, 3)])
def test_a_permanent_error_is_retried_as_often_as_allowed(max_failures, failures):
    """The scheduler is told each time, the searcher only at the end."""
    stage = Stage(lambda c, s: [ValueError("no")], trials(1, max_failures=max_failures)).run()
    assert (stage.statuses, stage.trial("t0").num_failures) == ({"t0": "ERROR"}, failures)
    assert stage.scheduler.told.count(("error", "t0")) == failures
    assert stage.search.completed == [("t0", None, True)]


def test_a_retry_goes_on_from_the_newest_checkpoint():
    stage = Stage(
        lambda config, start: [{"loss": 1.0}] * 3 + [ValueError("once")] if start == 0 else [{"loss": 1.0}],
        trials(1, max_failures=1, checkpoint_policy=CheckpointPolicy(frequency=2)),
    ).run()
    starts = [c for c in stage.engine.commands if isinstance(c, StartTrial)]
    assert [(c.checkpoint.index if c.checkpoint else None, c.checkpoint_index) for c in starts] == [
        (None, -1),
        (0, 0),
    ]
    assert stage.trial("t0").last_result["training_iteration"] == 3


@pytest.mark.conformance("C-018")
def test_fail_fast_stops_the_others():

    def script(config, start):
        return [ValueError("no")] if config["i"] == 0 else [{"loss": 1.0}] * 50

    stage = Stage(script, trials(2), failure=FailurePolicy(fail_fast=True)).run()
    assert stage.statuses == {"t0": "ERROR", "t1": "TERMINATED"}


def test_checkpoints_are_made_by_frequency_and_the_worst_are_given_up():
    stage = Stage(steps(6), trials(1, checkpoint_policy=CheckpointPolicy(frequency=1, num_to_keep=2))).run()
    assert [c.index for c in stage.trial("t0").checkpoints] == [4, 5]
    assert [d.ref.index for d in stage.state.facts.checkpoints_to_delete] == [0, 1, 2, 3]


@pytest.mark.conformance("C-003")
def test_at_end_saves_before_the_trial_stops():
    policy = CheckpointPolicy(at_end=True)
    stage = Stage(steps(9), trials(1, checkpoint_policy=policy, stopping_criterion={"training_iteration": 2}))
    stage.run()
    assert [c.metrics["training_iteration"] for c in stage.trial("t0").checkpoints] == [2]
    assert stage.trial("t0").last_result["done"] is True


@pytest.mark.conformance("C-004")
def test_a_paused_trial_saves_and_goes_on_later_from_there():
    paused = []

    def once(trial, result):
        if result["training_iteration"] == 1 and not paused:
            paused.append(trial.trial_id)
            return PAUSE
        return CONTINUE

    stage = Stage(steps(2), trials(1), scheduler=First(once)).run()
    starts = [
        c.checkpoint.metrics if c.checkpoint else None
        for c in stage.engine.commands
        if isinstance(c, StartTrial)
    ]
    assert starts == [None, {"training_iteration": 1}]
    assert (stage.statuses, stage.trial("t0").last_result["training_iteration"]) == ({"t0": "TERMINATED"}, 2)


@pytest.mark.conformance("C-095")
def test_what_can_never_fit_fails_with_both_numbers():
    from muster.trials.placement_group import PlacementGroupFactory

    big = trials(1, placement_group_factory=PlacementGroupFactory([{"CPU": 8, "GPU": 1}]))
    stage = Stage(steps(1), [*big], capacity={"CPU": 2}).run()
    assert stage.statuses == {"t0": "ERROR"}
    assert ("on_trial_failure", "t0") in stage.hooks.fired


def test_a_decision_nobody_knows_names_the_scheduler():
    stage = Stage(steps(1), trials(1), scheduler=First(lambda trial, result: "JUMP"))
    with pytest.raises(TuneError, match=r"JUMP.*t0"):
        stage.run()


def test_should_checkpoint_in_a_result_saves():
    stage = Stage(
        lambda c, s: [{"loss": 1.0, "should_checkpoint": i % 2 == 1} for i in range(6)], trials(1)
    ).run()
    assert sum(isinstance(c, SaveTrial) for c in stage.engine.commands) == 3


def test_a_stopper_ends_everything_in_the_ordinary_way():
    class AfterFour:
        def __init__(self):
            self.seen = 0

        def __call__(self, trial_id, result):
            self.seen += 1
            return False

        def stop_all(self):
            return self.seen >= 4

    stage = Stage(steps(50), trials(5), stopper=AfterFour()).run()
    assert set(stage.statuses.values()) == {"TERMINATED"}
    told = [t for w, t in stage.scheduler.told if w in ("complete", "remove")]
    assert sorted(told) == ["t0", "t1", "t2", "t3", "t4"]


def test_a_scheduler_that_goes_by_status_alone_still_fills_the_machine():
    """It sees a starting trial as PENDING and chooses it again, as schedulers written for Ray do."""

    class ByStatus(First):
        def choose_trial_to_run(self, tune_controller):
            waiting = (t for t in tune_controller.get_trials() if t.status == t.PENDING)
            return next(waiting, None)

    stage = Stage(steps(3), trials(6), scheduler=ByStatus(), capacity={"CPU": 3})
    stage.step()
    assert stage.engine.most_at_once == 3
    assert set(stage.run().statuses.values()) == {"TERMINATED"}


@pytest.mark.parametrize(
    ("most", "asked"), [(1, [1, 2, 3]), (4, [1, 2, 3]), (200, [16, 32, 48]), (40, [5, 10, 15])]
)
def test_the_searcher_is_asked_for_a_few_trials_at_a_time(most, asked):
    stage = Stage(steps(1), trials(100), capacity={"CPU": 1}, max_pending=most)
    made = []
    for _ in range(3):
        stage.state.advance(0.0)
        made.append(len(stage.state.trials))
        stage.state.index.pending.clear()  # as if all of them had been started
    assert made == asked


def test_no_more_trials_wait_than_may_and_none_is_asked_for_while_nearly_so_many_do():
    stage = Stage(steps(1), trials(100), capacity={"CPU": 1}, max_pending=40)
    seen = []
    while stage.step():
        seen.append(len(stage.state.index.pending))
    assert set(stage.statuses.values()) == {"TERMINATED"}
    assert max(seen) == 40
    assert all(waiting >= 35 for waiting in seen[20:150])


class Silent(First):
    """Silent starts nothing."""

    def choose_trial_to_run(self, tune_controller):
        return None


class Stalled(ListSearch):
    """Stalled has no trial now, and never ends."""

    def is_finished(self):
        return False


def warned_at(stage, moments):
    """Return the moments at which the state warned."""
    seen = []
    for at in moments:
        stage.state.advance(float(at))
        seen += [(at, text) for text in stage.state.facts.warnings]
        stage.state.facts.warnings.clear()
    return seen


def test_that_nothing_runs_is_reported_after_a_while_and_then_ever_later():
    stage = Stage(steps(1), trials(2), scheduler=Silent(), idle_warning_s=(60.0, 600.0))
    found = warned_at(stage, range(0, 1000, 10))
    assert [at for at, _ in found] == [60, 120, 240, 480, 960]
    assert all("Silent" in text for _, text in found)


def test_paused_trials_that_nobody_resumes_are_reported():
    pauses = First(lambda trial, result: PAUSE)
    stage = Stage(steps(3), trials(1), scheduler=pauses, idle_warning_s=(5.0, 5.0))
    stage.step()
    stage.scheduler.choose_trial_to_run = lambda view: None
    for _ in range(8):
        stage.step()
    assert stage.statuses == {"t0": "PAUSED"}
    found = warned_at(stage, range(100, 110))
    assert [("1 PAUSED" in text) for _, text in found] == [True]


def test_a_searcher_without_an_answer_is_reported_by_name():
    stage = Stage(steps(1), [])
    stage.state.plugins.search = Stalled([])
    assert [(at, "Stalled" in text) for at, text in warned_at(stage, range(0, 70, 10))] == [(60, True)]


def test_a_size_that_may_grow_has_a_threshold_of_its_own():
    stage = Stage(steps(1), trials(1), scheduler=Silent(), idle_warning_s=(1.0, 50.0))
    stage.state.handle(CapacityChanged(at=0.0, capacity={"CPU": 1}, is_bounded=False))
    assert [at for at, _ in warned_at(stage, range(0, 60, 10))] == [50]


def test_nothing_is_reported_while_a_trial_runs_and_the_time_begins_again_after_it():
    stage = Stage(steps(50), trials(1), idle_warning_s=(5.0, 5.0))
    assert stage.run().state.facts.warnings == []
    assert warned_at(stage, range(0, 1000, 10)) == []  # it is over


@pytest.mark.parametrize("admits", [True, False])
def test_a_loop_of_the_user_is_not_waited_for(admits):
    stage = Stage(steps(1), trials(1), scheduler=Silent())
    for at in (0.0, 100.0):
        stage.state.advance(at, admits=admits)
    assert len(stage.state.facts.warnings) == admits


class SlowToStop(ScriptedEngine):
    """An engine whose trial t0 does not stop before all others have ended."""

    def submit(self, command) -> None:
        if isinstance(command, StopTrial) and command.trial_id == "t0" and command.grace_s > 10:
            self.commands.append(command)
        else:
            super().submit(command)


@pytest.mark.parametrize("count", [1, 3])
def test_a_trial_has_long_to_stop_while_others_run_and_little_time_afterwards(count):
    stage = Stage(
        steps(3), trials(count, stopping_criterion={"training_iteration": 2}), force_cleanup_s=600.0
    )
    stage.engine = SlowToStop(steps(3))
    stage.run()
    graces = [(c.trial_id, c.grace_s) for c in stage.engine.commands if isinstance(c, StopTrial)]
    assert set(stage.statuses.values()) == {"TERMINATED"}
    assert [grace for trial_id, grace in graces if trial_id == "t0"] == [600.0, 10.0]
    assert ("t1", 10.0) not in graces


class StopsAll:
    """StopsAll ends the experiment whenever it is asked."""

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return True


@pytest.mark.conformance("C-082")
def test_a_stopper_ends_trials_before_their_first_result_and_not_before_there_are_any():
    stage = Stage(steps(3), trials(2), stopper=StopsAll()).run()
    assert stage.statuses == {"t0": "TERMINATED", "t1": "TERMINATED"}


class LoadsBadly(ScriptedEngine):
    """The first and the third start cannot load their checkpoint."""

    starts = 0

    def _start(self, command):
        self.starts += 1
        if self.starts not in (1, 3):
            super()._start(command)
            return
        failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message="cannot load")
        self.events.append(TrialExited(trial_id=command.trial_id, at=self._tick(), failure=failure))


def test_a_successful_restore_renews_the_budget_of_restore_failures():
    def script(config, start):
        return [{"loss": 1.0}, *([ValueError("once")] if engine.starts == 2 else [])]

    saved = CheckpointRef(path="/x/c", index=0, metrics={"training_iteration": 1})
    policy = FailurePolicy(restore_retries=1)
    stage = Stage(script, trials(1, checkpoints=(saved,), max_failures=1), failure=policy)
    engine = stage.engine = LoadsBadly(script)
    stage.run()
    assert (stage.statuses, stage.trial("t0").num_failures, engine.starts) == ({"t0": "TERMINATED"}, 1, 4)
