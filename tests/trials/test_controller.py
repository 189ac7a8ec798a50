"""The loop around the core: what is durable before what is done, and which facts may wait for others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.memory_trial_store import MemoryTrialStore
from tests.trials.scripted import Noted, Stage, steps, trials

from muster.base.clock import ManualClock
from muster.trials.controller import BATCH_DELAY_S, TrialController
from muster.trials.events import TrialReported
from muster.trials.model import CheckpointPolicy, CheckpointRef


class Journal:
    """Everything that leaves the loop, in order: appends and commands."""

    def __init__(self, script, count=1, *, batch_delay_s=0.0, hooks=None) -> None:
        self.stage = Stage(script, trials(count), capacity={"CPU": 1}, hooks=hooks)
        self.clock = ManualClock()
        self.store = MemoryTrialStore(root="/x")
        self.did: list = []
        self.waits: list[float] = []
        self.controller = TrialController(
            self.stage.state, engine=self, store=self, clock=self.clock, saver=self
        )
        self.controller.batch_delay_s = batch_delay_s

    def append(self, facts) -> None:
        self.did.append([type(fact).__name__ for fact in facts])
        self.store.append(facts)

    def snapshot(self, trials, plugins, statuses=None, ended=()) -> None:
        self.did.append("snapshot")
        self.store.snapshot(trials, plugins, statuses, ended)

    def is_due(self) -> bool:
        return False

    def save(self, flush, *, is_last=False) -> None:
        flush()
        self.snapshot(b"", {})

    def submit(self, command) -> None:
        self.did.append(type(command).__name__)
        self.stage.engine.submit(command)

    def poll(self, timeout_s):
        self.waits.append(timeout_s)
        return self.stage.engine.poll(timeout_s)

    def run(self):
        while self.controller.step():
            pass
        return self


def stops_at(iteration):
    return lambda trial, result: "STOP" if result["training_iteration"] == iteration else "CONTINUE"


def test_only_a_continue_leaves_before_the_facts_that_led_to_it_are_durable():
    assert Journal(steps(2)).run().did == [
        ["TrialCreated", "SearchExhausted", "TrialAdmitted"],
        "StartTrial",
        ["TrialStarted"],
        "ContinueTrial",
        ["TrialReported"],
        "ContinueTrial",
        ["TrialReported"],
        ["TrialExited"],
    ]


def test_results_that_only_let_a_trial_go_on_are_written_together():
    journal = Journal(steps(3), count=2, batch_delay_s=BATCH_DELAY_S).run()
    assert journal.did == [
        ["TrialCreated", "TrialCreated", "SearchExhausted", "TrialAdmitted"],
        "StartTrial",
        "ContinueTrial",
        "ContinueTrial",
        "ContinueTrial",
        ["TrialStarted", *["TrialReported"] * 3, "TrialExited", "TrialAdmitted"],
        "StartTrial",
        "ContinueTrial",
        "ContinueTrial",
        "ContinueTrial",
    ]
    journal.controller.save()
    assert journal.did[-2:] == [["TrialStarted", *["TrialReported"] * 3, "TrialExited"], "snapshot"]
    assert journal.store.appended == journal.stage.state.facts.count


def test_a_fact_waits_no_longer_than_it_may_and_a_poll_does_not_outlast_it():
    journal = Journal(steps(5), batch_delay_s=BATCH_DELAY_S)
    journal.controller.step()
    journal.controller.step(1.0)
    journal.clock.advance(BATCH_DELAY_S - 0.001)
    journal.controller.step(1.0)
    written = journal.store.appended
    journal.clock.advance(0.001)
    journal.controller.step(1.0)
    assert (written, journal.store.appended) == (3, 6)
    assert journal.waits == [0.0, 1.0, pytest.approx(0.001), 0.0]
    journal.controller.step(1.0)
    assert journal.waits[-1] == 1.0


def test_a_decision_is_carried_out_after_all_results_before_it_are_durable():
    journal = Journal(steps(9), batch_delay_s=BATCH_DELAY_S)
    journal.stage.scheduler._decide = stops_at(3)
    journal.run()
    assert journal.did[2:6] == [
        "ContinueTrial",
        "ContinueTrial",
        ["TrialStarted", *["TrialReported"] * 3, "TrialDecided"],
        "StopTrial",
    ]


class SavesEachStep(Journal):
    """A trial that makes a checkpoint with each report; `separately`, muster asks for it."""

    def __init__(self, script, *, separately: bool) -> None:
        super().__init__(script, batch_delay_s=BATCH_DELAY_S)
        self.separately = separately
        if separately:
            policy = CheckpointPolicy(frequency=1)
            self.stage.state.plugins.search._waiting[0].checkpoint_policy = policy

    def poll(self, timeout_s):
        return [self._with_checkpoint(event) for event in super().poll(timeout_s)]

    def _with_checkpoint(self, event):
        if self.separately or not isinstance(event, TrialReported):
            return event
        step = event.result["training_iteration"]
        return replace(event, checkpoint=CheckpointRef(path=f"/x/t0/checkpoint_{step:06d}", index=step))


@pytest.mark.parametrize(
    ("separately", "expected"),
    [
        (False, [["TrialStarted", "TrialReported"], "ContinueTrial", ["TrialReported"], "ContinueTrial"]),
        (
            True,
            [
                *(["TrialStarted", "TrialReported"], "SaveTrial", ["CheckpointSaved"], "ContinueTrial"),
                *(["TrialReported"], "SaveTrial", ["CheckpointSaved"], "ContinueTrial"),
            ],
        ),
    ],
)
def test_a_trial_with_a_new_checkpoint_continues_when_that_is_durable(separately, expected):
    """So a driver that is killed costs the step in progress, and not the one before it too."""
    journal = SavesEachStep(steps(2), separately=separately).run()
    assert journal.did[2 : 2 + len(expected)] == expected


class Breaks(Noted):
    def fire(self, hook, *, iteration, trials, **info) -> None:
        if hook == "on_trial_result" and info["result"]["training_iteration"] == 3:
            raise RuntimeError("a callback")


def test_when_a_step_fails_those_before_it_can_still_be_written_and_it_cannot():
    journal = Journal(steps(9), batch_delay_s=BATCH_DELAY_S, hooks=Breaks())
    with pytest.raises(RuntimeError, match="a callback"):
        journal.run()
    journal.controller.flush()
    reported = [fact for fact in journal.store.load().facts if isinstance(fact, TrialReported)]
    assert [fact.result["training_iteration"] for fact in reported] == [1, 2]


def test_a_checkpoint_is_given_up_only_when_the_facts_that_replace_it_are_durable():
    journal = Journal(steps(9), batch_delay_s=BATCH_DELAY_S)
    journal.controller.step()
    state = journal.stage.state
    journal.controller.step()
    held = state.facts.count
    state.facts.schedule_deletion([CheckpointRef(path="/x/t0/checkpoint_000000", index=0)])
    assert journal.controller.take_deletable() == ()
    journal.controller.flush()
    assert [ref.index for ref in journal.controller.take_deletable()] == [0]
    assert journal.store.appended == held


def test_the_first_trial_starts_without_a_wait_for_events_that_nothing_can_cause_yet():
    journal = Journal(steps(1))
    journal.controller.step(1.0)
    assert (journal.waits, journal.did[-1]) == ([0.0], "StartTrial")
