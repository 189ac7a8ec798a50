"""A node type at its maximum is renamed: busy nodes keep their work, and the cluster does not double."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.simulation.checkers import safety_checks
from tests.simulation.cluster import FaultyCluster
from tests.simulation.liveness import unsettled
from tests.simulation.options import BACKOFF, TIMEOUTS

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, NodeKind, Objective
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import TaskClass

TICK_S, WORK_S = 5.0, 400.0
MOST = 4  # workers
OLD = replace(WORKER_TYPES[0], max_nodes=MOST)
NEW = replace(OLD, name="cpu-4-renamed")


def started() -> FaultyCluster:
    spec = ClusterSpec(
        cluster_name="simulated",
        head_node_type=HEAD_TYPE,
        node_types=(head_type(), OLD),
        max_nodes=MOST + 1,
        idle_timeout_s=60.0,
        objective=Objective.UTILIZATION,
        timeouts=TIMEOUTS,
        backoff=BACKOFF,
    )
    catalogue = catalogue_for(replace(spec, node_types=(*spec.node_types, NEW)))
    options = RunOptions(spec=spec, catalogue=catalogue, tick_s=TICK_S)
    return FaultyCluster(Seed(1), options, Faults.none())


def workers(cluster: FaultyCluster) -> list[str]:
    return sorted(m.node_type for m in cluster.cloud.alive() if m.kind is NodeKind.WORKER)


@pytest.mark.slow
def test_busy_nodes_stay_until_idle_and_count_against_the_maximum():
    cluster, checks, most = started(), safety_checks(), 0
    four_cpus = TaskClass(Resources.of(CPU=4), (), "work")
    cluster.runtime.submit(four_cpus, MOST, WORK_S)
    for tick in range(260):
        if tick == 30:
            assert workers(cluster) == [OLD.name] * MOST
            head, _ = cluster.spec.spec.node_types
            cluster.spec.spec = replace(cluster.spec.spec, node_types=(head, NEW))
        if tick in (30, 220):  # first while the old nodes are busy, then when they have gone
            cluster.runtime.submit(four_cpus, 2, WORK_S)
        cluster.tick()
        assert [text for check in checks for text in check(cluster)] == []
        cluster.store.commits.clear()
        cluster.world.advance(TICK_S)
        most = max(most, len(workers(cluster)))
    assert (most, workers(cluster)) == (MOST, [NEW.name] * 2)
    assert all(drain.may_be_refused for drain in cluster.drains.requested)
    assert cluster.runtime.finished == MOST + 2
    assert list(unsettled(cluster)) == []
