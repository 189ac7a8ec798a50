"""SlurmEngine on a real Slurm: what can never start, time limits, sizes, and how often Slurm is called."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from types import SimpleNamespace

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.support.trainables import TRAINABLES

from muster.base.clock import SystemClock
from muster.base.forecast import Forecast
from muster.engines.slurm.engine import SlurmEngine, SlurmOptions
from muster.engines.slurm.pilot_jobs import UNLISTED, JobsView
from muster.engines.slurm.pilot_plan import PilotNeeds, PilotPlan, plan_pilots
from muster.engines.slurm.pilot_pool import PilotHandle
from muster.errors import EngineError
from muster.slurm.config import SlurmConfig
from muster.slurm.jobs import SlurmJob
from muster.slurm.wire import SlurmWire
from muster.trials.events import StopTrial, TrialFailureKind, TrialNoticed
from muster.trials.placement_group import PlacementGroupFactory


def unused_pilot(job_id, idle_since, ends_at=None):
    return SimpleNamespace(job_id=job_id, idle_since=idle_since, ends_at=ends_at)


def wait_for_stop(config):
    from muster import tune

    while True:
        time.sleep(0.05)
        tune.report({"noticed": tune.should_checkpoint()})


@pytest.fixture
def opened(slurm_site, tmp_path):
    """A function that opens an engine with pilots as given; it is closed after the test."""
    engines = []

    def open_with(**pilots):
        known = {**TRAINABLES, "wait_for_stop": wait_for_stop}
        config = SlurmConfig(**{"time": "10", "max_pilots": 2, **pilots})
        engine = SlurmEngine(
            directory=tmp_path,
            clock=SystemClock(),
            request=PlacementGroupFactory([{"CPU": 1}]),
            trainables={name: cloudpickle.dumps(made) for name, made in known.items()},
            options=SlurmOptions(config=config, linger_s=0.5),
        )
        engines.append(engine)
        return engine, Driver(engine, tmp_path)

    yield open_with
    for engine in engines:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pilots", "words"),
    [
        ({"partition": "nope"}, "partition"),
        ({"gres": "gpu:1"}, "gres"),
        ({"pilot_memory": "900G"}, "configuration"),
        ({"time": "2-0"}, "PartitionTimeLimit"),
        ({"setup": ["no-such-module"]}, "no-such-module"),
    ],
)
def test_what_can_never_start_ends_in_an_error_within_seconds(opened, pilots, words):
    _, driver = opened(**pilots)
    driver.start("a", "wait_for_stop")
    began = time.monotonic()
    with pytest.raises(EngineError, match=words):
        driver.poll_until(lambda: False)
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_trial_leaves_a_pilot_before_its_time_limit(opened, tmp_path):
    engine, driver = opened(max_pilots=1)
    driver.start("a", "wait_for_stop")
    driver.to_report("a")
    driver.go_on("a")
    pilot = next(iter(engine._pool.pilots.values()))
    pilot.ends_at = time.monotonic() + 30
    engine.wake_at(0.0)
    driver.poll_until(lambda: bool(driver.of("a", TrialNoticed)))
    driver.poll_until(lambda: True in driver.results("a", "noticed"))
    engine.submit(StopTrial(trial_id="a", grace_s=5.0))
    driver.to_exit("a")
    driver.start("b", "wait_for_stop")
    place = driver.to_start("b").location
    assert place["node_id"] != pilot.job_id


@pytest.mark.slow
def test_a_pilot_that_ends_before_the_next_step_takes_no_trial(opened):
    engine, driver = opened(max_pilots=1)
    driver.start("a", "wait_for_stop")
    driver.to_report("a")
    pilot = next(iter(engine._pool.pilots.values()))
    pilot.ends_at = time.monotonic() + 400
    engine._steps_s["b"] = 1000.0
    engine.submit(StopTrial(trial_id="a", grace_s=5.0))
    driver.to_exit("a")
    driver.start("b", "wait_for_stop")
    assert driver.quiet_for(0.5) == []
    pilot.ends_at = None
    engine._start_waiting()
    assert driver.to_start("b").location["node_id"] == pilot.job_id


@pytest.mark.slow
def test_pilots_follow_the_forecast_and_one_array_is_submitted(opened, slurm_site):
    engine, driver = opened(pilot_cpus=1)
    for name in ("a", "b"):
        driver.start(name, "wait_for_stop")
    driver.to_start("a"), driver.to_start("b")
    assert (len(engine._ledger.requests), len(engine._pool.pilots)) == (1, 2)
    engine.submit(StopTrial(trial_id="a", grace_s=5.0))
    driver.to_exit("a")
    engine.publish(Forecast(experiment="e", at=0.0, is_complete=True))
    driver.poll_until(lambda: len(engine._pool.pilots) == 1)
    slurm_site.wait(lambda: len(slurm_site.alive()) == 1)


@pytest.mark.slow
def test_trials_that_no_pilot_can_hold_are_refused(opened):
    _, driver = opened(pilot_cpus=1)
    driver.start("a", "wait_for_stop", resources={"CPU": 2})
    assert driver.to_exit("a").failure is not None
    spread = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    driver.start("b", "wait_for_stop", resources=spread)
    assert driver.to_exit("b").failure is not None


@pytest.mark.parametrize(
    ("states", "is_over"),
    [
        ([UNLISTED], False),
        ([UNLISTED, "COMPLETED", UNLISTED], False),
        ([UNLISTED] * 3, True),
        (["FAILED"], True),
        (["NODE_FAIL"] * 3, False),
    ],
)
def test_a_controller_that_forgets_a_new_array_does_not_end_the_experiment(tmp_path, states, is_over):
    engine = SlurmEngine(
        directory=tmp_path,
        clock=SystemClock(),
        request=PlacementGroupFactory([{"CPU": 1}]),
        wire=SlurmWire(),
    )
    engine._connected.update(f"{number}_0" for number, state in enumerate(states) if state == "COMPLETED")
    for number, state in enumerate(states):
        array = [SlurmJob(job_id=f"{number}_{task}", state=state) for task in range(8)]
        engine._on_view(JobsView(jobs={}, ended=array[: 1 if state == "COMPLETED" else 8]))
    with contextlib.closing(engine), pytest.raises(EngineError) if is_over else contextlib.nullcontext():
        assert not engine.poll(0.0)


def test_surplus_pilots_leave_queued_ones_first():
    unused = [
        unused_pilot(job_id="2_0", idle_since=0.0),
        unused_pilot(job_id="2_1", idle_since=0.0, ends_at=9.0),
    ]
    needs = PilotNeeds(now=9.0, started=1, expected=1, most=8, alive=4, queued=["3_0"], unused=unused)
    assert plan_pilots(needs) == PilotPlan(cancel=("3_0",), release=("2_1", "2_0"))


def test_idle_pilots_linger_while_more_may_come():
    unused = [unused_pilot(job_id="2_0", idle_since=7.0)]
    needs = PilotNeeds(now=9.0, started=0, expected=0, most=8, alive=1, unused=unused)
    assert plan_pilots(needs) == PilotPlan(wake_at=12.0)


def test_pilots_that_the_forecast_names_stay():
    unused = [unused_pilot(job_id="2_0", idle_since=0.0)]
    needs = PilotNeeds(now=99.0, started=1, expected=2, most=8, alive=2, unused=unused, is_complete=True)
    assert plan_pilots(needs) == PilotPlan()


@pytest.mark.parametrize(
    ("kills", "kind"), [(6, TrialFailureKind.KILLED), (7, TrialFailureKind.OUT_OF_MEMORY)]
)
def test_a_machine_that_lacked_memory_before_the_job_does_not_explain_a_kill(kills, kind):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hello = {
            "job": "1",
            "pid": 2,
            "hostname": "n1",
            "node": "n1",
            "gpus": ("", []),
            "capacity": {"CPU": 1},
        }
        pilot = PilotHandle(ours, {**hello, "oom_kills": 6}, now=0.0)
        pilot.oom_kills = kills
        assert pilot.exits.failure_of_status(signal.SIGKILL).kind is kind
