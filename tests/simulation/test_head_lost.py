"""A head is lost for good: the new one has an older ledger and the provider's list, and converges."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import safety_checks
from tests.simulation.cluster import FaultyCluster
from tests.simulation.liveness import unsettled
from tests.simulation.money import money_checks
from tests.simulation.options import BACKOFF, TIMEOUTS

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, NodeKind, Objective
from muster.cluster.states import ON_CLOUD
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import FOREVER, TaskClass

TICK_S = 5.0


class Story:
    """A cluster without other faults; every tick is checked."""

    def __init__(self, *, installs: bool) -> None:
        workers = tuple(replace(kind, max_nodes=8) for kind in WORKER_TYPES[:2])
        spec = ClusterSpec(
            cluster_name="simulated",
            head_node_type=HEAD_TYPE,
            node_types=(head_type(), *workers),
            idle_timeout_s=60.0,
            objective=Objective.UTILIZATION,
            install_runtime=installs,
            timeouts=TIMEOUTS,
            backoff=BACKOFF,
        )
        options = RunOptions(spec=spec, catalogue=catalogue_for(spec), tick_s=TICK_S)
        self.cluster = FaultyCluster(Seed(1), options, Faults.none())
        self.checks = (*safety_checks(), *money_checks())

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.cluster.tick()
            assert [text for check in self.checks for text in check(self.cluster)] == []
            self.cluster.store.commits.clear()
            self.cluster.keep_copy()
            self.cluster.world.advance(TICK_S)

    def serve(self, name: str, count: int) -> None:
        self.cluster.runtime.submit(TaskClass(Resources.of(CPU=4), (), name), count, FOREVER)

    def workers(self) -> set[str]:
        return {m.cloud_id for m in self.cluster.cloud.alive() if m.kind is NodeKind.WORKER}

    def owned(self) -> set[str]:
        return {i.cloud_id for i in self.cluster.store.live.values() if i.state in ON_CLOUD}


def grown(*, installs: bool) -> Story:
    """Two services: one older than the copy that the new head gets, one younger."""
    story = Story(installs=installs)
    story.serve("old", 2)
    story.ticks(20)
    story.serve("young", 3)
    story.ticks(11)
    assert len(story.workers()) >= 2
    return story


@pytest.mark.parametrize("ticks_ago", [1, 6, 12])
def test_workers_are_adopted_and_set_up_again_and_nothing_is_bought(ticks_ago):
    story = grown(installs=True)
    before, calls = story.workers(), len(story.cluster.cloud.launch_calls)
    story.cluster.lose_head(ticks_ago)
    story.ticks(40)
    assert (story.workers(), len(story.cluster.cloud.launch_calls)) == (before, calls)
    assert story.workers() <= story.owned()
    assert (story.cluster.runtime.pending_tasks(), list(unsettled(story.cluster))) == (0, [])


@pytest.mark.parametrize("ticks_ago", [1, 12])
def test_workers_that_nobody_can_set_up_again_are_ended_and_replaced_and_none_is_left(ticks_ago):
    story = grown(installs=False)
    before = story.workers()
    story.cluster.lose_head(ticks_ago)
    story.ticks(80)
    assert not story.workers() & before
    assert story.workers() <= story.owned()
    assert (story.cluster.runtime.pending_tasks(), list(unsettled(story.cluster))) == (0, [])


def test_a_head_that_is_lost_before_its_first_copy_starts_like_a_new_one():
    story = Story(installs=True)
    story.cluster.lose_head(3)
    assert story.cluster.restored_at == []
