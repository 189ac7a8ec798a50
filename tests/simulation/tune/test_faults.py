"""Check the faults of simulated trials: when they come, and that they depend on the seed alone."""

from __future__ import annotations

import math

import pytest
from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyEngine, ProcessFaults

from muster.base.clock import ManualClock
from muster.sim.tune.trial import Costs
from muster.trials.events import (
    ContinueTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailureKind,
    TrialReported,
)
from muster.trials.placement_group import PlacementGroupFactory


def start():
    return StartTrial(
        trial_id="a",
        trial_name="a",
        trainable_name="f",
        config={"x": 1.0},
        resources=PlacementGroupFactory([{"CPU": 1}]),
        trial_dir="/simulated/a",
        experiment_name="e",
    )


def engine(faults, **more):
    made = FaultyEngine(ManualClock(), {"CPU": 2}, lambda config, t: {"loss": config["x"] / t}, **more)
    made.faults = faults
    return made


def next_events(made):
    return [(type(event).__name__, event.trial_id, event.at) for event in made.poll(0.1)]


class Doomed(FaultPlan):
    """The first start has these faults, later ones none."""

    def __init__(self, faults):
        super().__init__(FaultRates(loss_noticed_after_s=30.0), 0)
        self._first = faults

    def faults_of(self, trial_id, attempt):
        return self._first if attempt == 1 else ProcessFaults()


@pytest.mark.parametrize(
    ("faults", "kind", "at"),
    [
        (ProcessFaults(crash_after_s=2.5), TrialFailureKind.USER_ERROR, 2.5),
        (ProcessFaults(crash_after_s=2.5, is_killed=True), TrialFailureKind.KILLED, 2.5),
        (ProcessFaults(loss_after_s=2.5), TrialFailureKind.NODE_LOST, 32.5),
        (ProcessFaults(loss_after_s=2.5, crash_after_s=3.0), TrialFailureKind.NODE_LOST, 32.5),
    ],
)
def test_a_fault_comes_at_its_moment_whatever_the_trial_is_doing(faults, kind, at):
    for answers in (True, False):
        made = engine(Doomed(faults))
        made.submit(start())
        gone = None
        while gone is None:
            for event in made.poll(0.1):
                if isinstance(event, TrialReported) and answers:
                    made.submit(ContinueTrial(trial_id="a"))
                gone = event if isinstance(event, TrialExited) else None
        assert (gone.failure.kind, gone.at) == (kind, at)
        made.submit(start())
        assert next_events(made) == [("TrialStarted", "a", at)]


def test_a_lost_trial_that_is_stopped_ends_by_force():
    made = engine(Doomed(ProcessFaults(loss_after_s=0.5)))
    made.submit(start())
    made.poll(0.1)
    made.timeline.wake_at = 0.75
    assert next_events(made) == []
    made.timeline.wake_at = math.inf
    made.submit(StopTrial(trial_id="a", grace_s=10.0))
    (gone,) = made.poll(0.1)
    assert (gone.at, gone.failure) == (10.5, None)


def test_slow_starts_stragglers_odd_reports_and_lost_saves():
    slow = engine(Doomed(ProcessFaults(start_factor=10.0, pace=3.0)), costs=Costs(start_s=5.0))
    slow.submit(start())
    assert next_events(slow) == [("TrialStarted", "a", 110.0)]
    assert next_events(slow) == [("TrialReported", "a", 113.0)]
    odd = engine(Doomed(ProcessFaults(odd_reports=1.0, lost_saves=1.0)))
    odd.submit(start())
    odd.poll(0.1)
    (report,) = odd.poll(0.1)
    assert not math.isfinite(report.result["loss"])
    odd.submit(SaveTrial(trial_id="a"))
    (saved,) = odd.poll(0.1)
    assert saved.checkpoint is None


def test_faults_depend_on_the_trial_and_its_attempt_and_on_nothing_else():
    rates = FaultRates(crashes_per_h=1.0, losses_per_h=1.0, slow_starts=0.5, odd_reports=0.5)
    one, two = FaultPlan(rates, 3), FaultPlan(rates, 3)
    forwards = [one.faults_of(f"t{n}", k) for n in range(5) for k in (1, 2)]
    backwards = [two.faults_of(f"t{n}", k) for n in reversed(range(5)) for k in (2, 1)]
    assert forwards == backwards[::-1]
    assert len({faults.crash_after_s for faults in forwards}) == 10
    assert FaultPlan(rates, 4).faults_of("t0", 1) != forwards[0]
    assert FaultPlan(FaultRates(), 3).faults_of("t0", 1) == ProcessFaults()


def test_swarms_turn_every_kind_of_fault_on_for_some_seeds_and_off_for_others():
    drawn = [FaultRates.swarm(seed) for seed in range(40)]
    for name in ("crashes_per_h", "losses_per_h", "slow_starts", "stragglers", "odd_reports", "lost_saves"):
        values = [getattr(rates, name) for rates in drawn]
        assert 5 < sum(value > 0 for value in values) < 35
