"""Check virtual time: durations, checkpoints, and that a run can be repeated."""

from __future__ import annotations

import math

import pytest

from muster.base.clock import ManualClock
from muster.sim.cluster.world import World
from muster.sim.tune.engine import SimulatedEngine
from muster.sim.tune.trial import Costs, Curve, FunctionCurve
from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialFailureKind,
    TrialStarted,
)
from muster.trials.placement_group import PlacementGroupFactory


def start(trial_id="a", cpus=1, **more):
    return StartTrial(
        trial_id=trial_id,
        trial_name=trial_id,
        trainable_name="f",
        config=more.pop("config", {"x": 1.0}),
        resources=PlacementGroupFactory([{"CPU": cpus}]),
        trial_dir=f"/simulated/{trial_id}",
        experiment_name="e",
        **more,
    )


def engine(curve=lambda config, t: {"loss": config["x"] / t}, cpus=2, **more):
    return SimulatedEngine(ManualClock(), {"CPU": cpus}, curve, **more)


def told(made, events):
    return [(type(event).__name__, event.trial_id, event.at) for event in events]


def next_events(made):
    return told(made, made.poll(0.1))


def test_starting_iterating_saving_and_stopping_take_the_time_they_cost():
    costs = Costs(start_s=5.0, restore_s=3.0, save_s=2.0, stop_s=1.0)
    made = engine(FunctionCurve(lambda config, t: {}, seconds=60.0), costs=costs)
    made.submit(start())
    assert next_events(made) == [("TrialStarted", "a", 5.0)]
    assert next_events(made) == [("TrialReported", "a", 65.0)]
    made.submit(SaveTrial(trial_id="a"))
    (saved,) = made.poll(0.1)
    assert (type(saved), saved.at, saved.checkpoint.path) == (
        CheckpointSaved,
        67.0,
        "/simulated/a/checkpoint_000000",
    )
    made.submit(StopTrial(trial_id="a"))
    assert next_events(made) == [("TrialExited", "a", 68.0)]
    made.submit(start(checkpoint=saved.checkpoint, checkpoint_index=0))
    assert next_events(made) == [("TrialStarted", "a", 76.0)]
    (report,) = made.poll(0.1)
    assert (report.at, report.result["training_iteration"], report.result["time_total_s"]) == (
        136.0,
        2,
        120.0,
    )


def test_a_duration_may_depend_on_config_and_iteration():
    made = engine(FunctionCurve(lambda config, t: {}, seconds=lambda config, t: config["x"] * t))
    made.submit(start(config={"x": 10.0}))
    made.poll(0.1)
    assert next_events(made) == [("TrialReported", "a", 10.0)]
    made.submit(ContinueTrial(trial_id="a"))
    assert next_events(made) == [("TrialReported", "a", 30.0)]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_duration_that_makes_no_sense_is_the_trials_error(seconds):
    made = engine(FunctionCurve(lambda config, t: {}, seconds=seconds))
    made.submit(start())
    *_, gone = made.poll(0.1)
    assert gone.failure.kind is TrialFailureKind.USER_ERROR
    assert "Curve.seconds" in gone.failure.message


def test_what_happens_at_the_same_moment_comes_together_in_the_order_of_the_orders():
    made = engine()
    made.submit(start("b"))
    made.submit(start("a"))
    assert next_events(made) == [("TrialStarted", "b", 0.0), ("TrialStarted", "a", 0.0)]
    assert next_events(made) == [("TrialReported", "b", 1.0), ("TrialReported", "a", 1.0)]


def test_poll_comes_back_at_the_wake_time_and_waits_out_an_empty_world():
    made = engine(FunctionCurve(lambda config, t: {}, seconds=60.0))
    made.submit(start())
    made.poll(0.1)
    made.timeline.wake_at = 20.0
    assert (next_events(made), made._clock.monotonic()) == ([], 20.0)
    made.timeline.wake_at = math.inf
    assert next_events(made) == [("TrialReported", "a", 60.0)]
    assert made.is_idle
    assert (next_events(made), made._clock.monotonic()) == ([], 60.1)


def test_the_clock_may_be_a_world():
    world = World()
    made = SimulatedEngine(world, {"CPU": 1}, lambda config, t: {})
    made.submit(start())
    assert [event.at - world.wall_shift for event in (*made.poll(1.0), *made.poll(1.0))] == [0.0, 1.0]


class Adds(Curve):
    """Adds has a past that matters: the sum of the learning rates it was trained with."""

    def begin(self, config):
        return [0.0]

    def advance(self, config, iteration, memory):
        total = [memory[0] + config["x"]]
        return {"sum": total[0]}, total


def test_a_curve_with_a_past_keeps_it_under_another_config_and_in_another_engine():
    made = engine(Adds())
    made.submit(start(config={"x": 1.0}))
    made.poll(0.1)
    made.poll(0.1)
    made.submit(SaveTrial(trial_id="a"))
    (saved,) = made.poll(0.1)
    later = engine(Adds())
    later.submit(start("b", config={"x": 100.0}, checkpoint=saved.checkpoint))
    later.poll(0.1)
    (report,) = later.poll(0.1)
    assert (report.result["sum"], report.result["training_iteration"]) == (101.0, 2)


def test_busy_seconds_are_the_share_of_the_capacity_over_time():
    made = engine(FunctionCurve(lambda config, t: {}, seconds=10.0), cpus=4)
    made.submit(start("a", cpus=1))
    made.submit(start("b", cpus=2))
    made.poll(0.1)
    made.poll(0.1)
    assert made.worker_capacity.busy_s == 7.5
    made.submit(StopTrial(trial_id="b"))
    made.submit(ContinueTrial(trial_id="a"))
    made.poll(0.1)
    made.poll(0.1)
    assert made.worker_capacity.busy_s == 10.0
    made.close()
    made.world.advance(100.0)
    assert made.worker_capacity.busy_s == 10.0


def test_a_time_limit_is_kept():
    made = engine(FunctionCurve(lambda config, t: {}, seconds=60.0))
    made.submit(start(time_limit_s=30.0))
    made.poll(0.1)
    (gone,) = made.poll(0.1)
    assert (gone.at, gone.failure.kind) == (30.0, TrialFailureKind.TIME_LIMIT)


def test_events_of_a_started_trial_name_its_process():
    made = engine()
    made.submit(start())
    (started,) = made.poll(0.1)
    assert isinstance(started, TrialStarted)
    assert started.location == {"pid": 1, "hostname": "simulated", "node_ip": "127.0.0.1"}
