"""The simulator knows how a controller's clock differs from true time, and excuses no more than that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import NoHotLoop, busy_nodes_are_drained_first
from tests.simulation.cluster import ClockChange, FaultyCluster
from tests.simulation.money import SpendAddsUp, SpendFollowsTrueTime
from tests.simulation.run import SeedRun
from tests.support.builders import instance

from muster.cluster.model import NodeReport, RuntimeReport
from muster.cluster.plan import Launch, Plan
from muster.cluster.states import InstanceState as S
from muster.sim.cluster.build import CommittedPlan
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import START_OF_DAY

STEP_S = 10.0


@pytest.fixture
def cluster() -> FaultyCluster:
    run = SeedRun(0)
    calm = FaultyCluster(run.seed, run.options, Faults.none())
    calm.tick()
    calm.world.advance(STEP_S)
    return calm


def test_a_clock_that_is_set_under_a_running_controller_changes_nothing(cluster):
    cluster.world.jump(600.0)
    cluster.tick()
    assert cluster.clock_changes == []


@pytest.mark.parametrize("jump_s", [600.0, 30 * 86_400.0, -3600.0])
def test_a_controller_that_is_started_again_on_the_same_boot_does_not_follow_the_clock(cluster, jump_s):
    cluster.world.jump(jump_s)
    for _ in range(2):
        cluster.controller = None
        cluster.tick()
        cluster.world.advance(STEP_S)
    assert cluster.clock_changes == []


def test_a_controller_that_starts_on_another_boot_runs_ahead_with_the_clock(cluster):
    cluster.world.jump(600.0)
    _start_again(cluster)
    at = cluster.world.time + START_OF_DAY + 600.0
    assert cluster.clock_changes == [ClockChange(STEP_S, at, 600.0)]
    assert (cluster.ran_ahead_s(at - 1.0), cluster.ran_ahead_s(at), cluster.stood_still_s(0.0)) == (600, 0, 0)


def test_a_clock_behind_the_ledger_stands_still_at_every_boot(cluster):
    cluster.world.jump(-3600.0)
    for _ in range(2):
        _start_again(cluster)
        cluster.world.advance(STEP_S)
    assert cluster.stood_still_s(0.0) == 2 * STEP_S
    assert cluster.stood_still_s(STEP_S) == STEP_S


def test_what_only_the_clock_of_another_boot_shows_is_charged_for_an_hour_at_most(cluster):
    head = cluster.cloud.alive()[0]
    before = cluster.spent()
    cluster.world.jump(30 * 86_400.0)
    _start_again(cluster)
    assert head.price_per_hour > 0
    assert cluster.spent() - before == pytest.approx(head.price_per_hour, rel=0.01)
    assert "clock" in [note.source for note in cluster.plan.quarantined]
    assert list(SpendFollowsTrueTime()(cluster)) == []


def _start_again(cluster) -> None:
    cluster.boots += 1
    cluster.controller = None
    cluster.tick()


def test_a_refusal_that_is_newer_than_the_clock_change_is_not_excused(cluster):
    cluster.world.jump(600.0)
    _start_again(cluster)
    check, name = NoHotLoop(), cluster.spec.spec.node_types[1].name
    for known_at, is_excused in ((START_OF_DAY, True), (START_OF_DAY + 610.0, False)):
        check._refused_at = {name: [(cluster.world.time - 1.0, known_at)]}
        asked = _launches(cluster, name)
        assert (list(check._asked_too_soon(asked)) == []) is is_excused


def test_work_that_is_given_up_long_before_its_deadline_is_excused_only_by_a_clock_that_ran_ahead(cluster):
    name = cluster.spec.spec.node_types[1].name
    machine = cluster.cloud.create(name)
    cluster.join(machine)
    node = cluster.runtime.node_on(machine)
    node.running["task"] = None
    cluster.runtime.shown_alive.add(node.node_id)
    before = instance("i-1", S.RAY_STOPPING, since=START_OF_DAY, cloud_id=machine.cloud_id)
    given_up = replace(before, state=S.TERMINATING, history=(*before.history, *_at(S.TERMINATING)))
    cluster.store.commits.append(CommittedPlan({"i-1": before}, _plan(given_up), 1, 2))
    assert len(list(busy_nodes_are_drained_first(cluster))) == 1
    cluster.clock_changes.append(ClockChange(STEP_S, START_OF_DAY + STEP_S, -30.0))
    assert len(list(busy_nodes_are_drained_first(cluster))) == 1
    cluster.clock_changes.append(ClockChange(STEP_S, START_OF_DAY + STEP_S, 600.0))
    assert list(busy_nodes_are_drained_first(cluster)) == []


@pytest.mark.parametrize(("is_again", "late"), [(False, True), (True, False)])
def test_the_second_life_of_a_machine_does_not_end_when_its_first_did(cluster, is_again, late):
    machine = cluster.cloud.create(cluster.spec.spec.node_types[1].name)
    cluster.cloud.end(machine, "stopped")
    check = SpendAddsUp()
    _look(cluster, check, 12)
    if is_again:
        machine.created_at = machine.ended_at = cluster.world.time
    record = instance("i-1", S.RAY_RUNNING, cloud_id=machine.cloud_id)
    ended = replace(record, state=S.TERMINATED, history=(*record.history, *_at(S.TERMINATED)))
    cluster.store.commits.append(CommittedPlan({"i-1": record}, _plan(ended), 1, 2))
    assert any("too late after its end" in text for text in _look(cluster, check, 1)) is late


def _look(cluster, check, times: int) -> list[str]:
    found: list[str] = []
    for _ in range(times):
        cluster.store.committed, cluster.cloud.listed = _plan(), {}
        followed = next(record.node_id for record in cluster.store.live.values() if record.node_id)
        head = NodeReport(node_id=followed, cloud_id=cluster.cloud.alive()[0].cloud_id, is_head=True)
        cluster.runtime.report_read = RuntimeReport(version=1, nodes=(head,))
        found += check(cluster)
        cluster.world.advance(STEP_S)
    return found


def _launches(cluster, name: str):
    launch = Launch(request_id="r-1", shape={name: 1}, instance_ids=("i-1",))
    cluster.store.committed = replace(_plan(), actions=(launch,))
    return cluster


def _at(state: S):
    return instance("i", state, since=START_OF_DAY + STEP_S).history


def _plan(*writes) -> Plan:
    return Plan(tick_id="t", at=START_OF_DAY + STEP_S, writes=writes)
