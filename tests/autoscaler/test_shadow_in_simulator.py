"""A shadow beside a simulated cluster with all its faults: the cluster's run stays exactly the same."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace
from tests.simulation.cluster import FaultyCluster
from tests.simulation.run import SeedRun, simulate

from muster.autoscaler.shadow import ShadowWorld
from muster.base.ids import CountingIds
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController
from muster.cluster.ports import Ports
from muster.stores.ledger.memory import MemoryInstanceStore

pytestmark = pytest.mark.slow
SEEDS = range(5_000, 5_006)
REST_TICKS = 40


class FileOfCluster:
    def __init__(self, cluster):
        self._cluster = cluster

    def current(self):
        return self._cluster.spec.spec, ""


class ShadowedCluster(FaultyCluster):
    """Its controller scales the cluster; the shadow ticks after it, and sees the cluster as it is."""

    book: ClassVar[Path]

    def __init__(self, *given):
        super().__init__(*given)
        self.version = 0
        self.notes: set[str] = set()
        self.shadow = ShadowWorld(self._real, FileOfCluster(self), self.book, self.world)
        world = self.shadow
        ports = Ports(world, world, world, None, MemoryInstanceStore(), world)
        self.watcher = ClusterController(ports, Ambient(self.world, CountingIds(), Seed(0)))

    def _real(self):
        self.version += 1
        return replace(self.runtime._report(), version=self.version)

    def tick(self):
        super().tick()
        self.watch()

    def watch(self):
        result = self.watcher.tick()
        self.notes |= {note.source for note in result.plan.quarantined}
        self.ledger = result.ledger


class ShadowedRun(SeedRun):
    cluster_class = ShadowedCluster


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shadow_changes_nothing_and_follows_everything(seed, tmp_path):
    ShadowedCluster.book = tmp_path / "shadow.json"
    alone = simulate(seed)
    run = ShadowedRun(seed)
    report = run.to_end()
    assert report == alone
    cluster = run.cluster
    for _ in range(REST_TICKS):  # nobody works any more: the shadow settles
        cluster.world.advance(1.0)
        cluster.watch()
    book, alive = cluster.shadow.book, [node for node in cluster.runtime.nodes.values() if node.alive]
    assert set(book.nodes) == {node.node_id for node in alive}
    assert {note for note in cluster.notes if note.startswith(("rule", "record", "ledger"))} == set()
    kept = {node.cloud_id for node in book.nodes.values() if node.looks_since < 0}
    waiting = {purchase.cloud_id for purchase in book.opened()}
    assert {
        record.cloud_id for record in cluster.ledger.instances.values() if record.cloud_id
    } == kept | waiting
    assert book.summary.watched_s <= cluster.world.time  # whatever was done to the wall clock
    assert book.summary.waiting == 0 or cluster.runtime.pending_tasks() or cluster.runtime.pending_gangs()
