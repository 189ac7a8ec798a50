"""A worker that cannot be set up: its type or offer is tried less and less often, and others serve."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import safety_checks
from tests.simulation.cluster import FaultyCluster
from tests.simulation.options import TIMEOUTS

from muster.autoscaler.events import events_of
from muster.autoscaler.metrics import launch_failures_of
from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, NodeKind, Objective, Offer
from muster.cluster.plan import Reason, Subject
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import FOREVER, TaskClass

TICK_S = 5.0
HOUR_S = 3600.0
CHEAP = Offer(zone="a", price_per_hour=0.1)
DEAR = Offer(zone="b", price_per_hour=0.2)


class Story:
    """A cluster whose set-ups of `broken` fail at `rate`; the back-off is the default one."""

    def __init__(
        self, broken: str, rate: float, offers=(), installs_s: float = 10.0, wanted: int = 1
    ) -> None:
        worker = replace(WORKER_TYPES[0], max_nodes=8, offers=offers)
        spec = ClusterSpec(
            cluster_name="simulated",
            head_node_type=HEAD_TYPE,
            node_types=(head_type(), worker),
            objective=Objective.UTILIZATION,
            install_runtime=True,
            timeouts=replace(TIMEOUTS, install_s=1800.0),
        )
        options = RunOptions(
            spec=spec,
            catalogue=catalogue_for(spec),
            tick_s=TICK_S,
            install_s=installs_s,
            broken_setup=broken,
        )
        self.cluster = FaultyCluster(Seed(1), options, Faults(Seed(2), {"setup_broken": rate}))
        self.checks = safety_checks()
        self.cluster.runtime.submit(TaskClass(Resources.of(CPU=4), (), "work"), wanted, FOREVER)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.cluster.tick()
            assert [text for check in self.checks for text in check(self.cluster)] == []
            self.cluster.store.commits.clear()
            self.cluster.world.advance(TICK_S)

    @property
    def launched(self) -> int:
        return sum(machine.kind is NodeKind.WORKER for machine in self.cluster.cloud.machines.values())


@pytest.mark.slow
@pytest.mark.parametrize(("installs_s", "wanted"), [(1.0, 1), (30.0, 8), (200.0, 8), (900.0, 1)])
def test_a_set_up_that_always_fails_launches_few_machines_per_hour(installs_s, wanted):
    story = Story("cpu-4", 1.0, installs_s=installs_s, wanted=wanted)
    story.run(HOUR_S)
    first = story.launched
    story.run(HOUR_S)
    assert first <= 8 + wanted
    assert story.launched - first <= 6


def test_what_failed_is_reported_as_a_failed_launch_and_as_a_reason():
    story = Story("cpu-4", 1.0)
    story.run(60.0)
    plan = story.cluster.plan
    blocked = [v.reason for v in plan.verdicts if v.subject is Subject.NODE_TYPE and v.subject_id == "cpu-4"]
    waiting = {v.reason for v in plan.verdicts if v.subject is Subject.DEMAND}
    assert (blocked, waiting) == ([Reason.TYPE_NEEDS_USER_ACTION], {Reason.BLOCKED_BY_BACKOFF})
    assert [failed.node_type for failed in plan.report.failed_launches] == ["cpu-4"]


def test_a_failed_set_up_is_logged_and_counted_once():
    story = Story("cpu-4", 1.0)
    logged, counted = [], Counter()
    for _ in range(12):
        story.run(TICK_S)
        events, _ = events_of(frozenset(), story.cluster.result)
        logged += [event for event in events if "set up" in event.message]
        counted += launch_failures_of(story.cluster.result)
    assert [event.level for event in logged] == ["warning"]
    assert counted == {("cpu-4", "setup"): 1}


def test_an_offer_whose_set_ups_fail_is_left_for_another():
    story = Story("cpu-4 a/on-demand", 1.0, offers=(CHEAP, DEAR))
    story.run(300.0)
    assert story.cluster.runtime.pending_tasks() == 0
    assert story.launched == 2


@pytest.mark.slow
def test_the_type_is_paused_when_a_second_offer_fails_too():
    offers = tuple(Offer(zone=zone, price_per_hour=0.1) for zone in "abcdef")
    story = Story("cpu-4", 1.0, offers=offers)
    story.run(HOUR_S)
    assert story.launched <= 10


@pytest.mark.slow
def test_set_ups_that_fail_often_are_tried_until_one_succeeds():
    story = Story("cpu-4", 0.7, wanted=3)
    story.run(4 * HOUR_S)
    assert story.cluster.runtime.pending_tasks() == 0
    assert "cpu-4" not in story.cluster.store.newest.memory.health
