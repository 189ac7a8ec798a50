"""A simulated cluster that keeps its history as a monitor does, for the tests of what reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, LaunchLimits, Objective, Offer, Strategy
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.stores.history.entries import HistoryEntry
from muster.stores.history.files import HistoryLimits, HistoryWriter
from muster.stores.history.past import PastReader

TYPES = {known.name: known for known in WORKER_TYPES}


def spec(*names: str, most: int = 8, **changes: object) -> ClusterSpec:
    workers = tuple(replace(TYPES[name], max_nodes=most) for name in names or ("cpu-4", "gpu-1"))
    made = ClusterSpec(
        cluster_name="recorded",
        head_node_type="head",
        node_types=(head_type(), *workers),
        idle_timeout_s=90.0,
        objective=Objective.COST,
        limits=LaunchLimits(upscaling_speed=10.0, max_concurrent=20),
    )
    return replace(made, **changes)


def with_offers(known: ClusterSpec, *offers: Offer) -> ClusterSpec:
    head, *workers = known.node_types
    return replace(known, node_types=(head, *(replace(each, offers=offers) for each in workers)))


class RecordedCluster:
    """Ticks every `tick_s` and writes its history into a folder."""

    def __init__(
        self, folder: Path, wanted: ClusterSpec | None = None, *, tick_s: float = 5.0, seed: int = 1
    ):
        wanted = wanted or spec()
        sells = catalogue_for(wanted)
        sells.boot_s, sells.shutdown_s, sells.reports_offers = (40.0, 80.0), (5.0, 15.0), True
        options = RunOptions(spec=wanted, catalogue=sells, tick_s=tick_s)
        self.folder, self.tick_s = folder, tick_s
        self.cluster = SimulatedCluster(Seed(seed), options, Faults.none())
        self.writer = HistoryWriter(folder)
        self.draw = Seed(seed).derive("test.work")
        self.took_s: list[float] = []

    def reopen(self, limits: HistoryLimits | None = None) -> None:
        """Another monitor takes over, as after a kill: nothing is closed in an orderly way."""
        self.writer = HistoryWriter(self.folder, limits)

    def submit(self, count: int, seconds: float, name: str = "", **shape: float) -> None:
        self.cluster.runtime.submit(TaskClass(Resources.of(shape), name=name), count, seconds)

    def gang(self, name: str, count: int, seconds: float, **shape: float) -> None:
        bundles = [self.cluster.runtime.bundle(Resources.of(shape)) for _ in range(count)]
        self.cluster.runtime.submit_gang(GangWork(name, Strategy.PACK, bundles, seconds))

    def run(self, seconds: float) -> None:
        until = self.cluster.world.time + seconds
        while self.cluster.world.time < until:
            self.cluster.tick()
            self.cluster.store.commits.clear()
            result = self.cluster.result
            self.writer.record(result)
            self.cluster.world.advance(self.tick_s)

    def busy(self, seconds: float, mean_gap_s: float) -> None:
        """Let users submit work of several shapes at random times, and run."""
        self._next(mean_gap_s, self.cluster.world.time + seconds)
        self.run(seconds)

    def _next(self, mean_gap_s: float, until: float) -> None:
        draw = self.draw
        shape = draw.choice(({"CPU": 1}, {"CPU": 2}, {"CPU": 3}, {"CPU": 2, "GPU": 1}))
        self.submit(draw.randint(1, 6), draw.uniform(60, 900), **shape)
        if draw.random() < 0.2:
            self.gang(f"{draw.getrandbits(64):016x}", draw.randint(1, 3), draw.uniform(60, 600), CPU=2)
        gap_s = draw.expovariate(1 / mean_gap_s)
        if self.cluster.world.time + gap_s < until:
            self.cluster.world.after(gap_s, lambda: self._next(mean_gap_s, until))

    def end(self) -> None:
        self.writer.close(self.cluster.world.now())


def read_past(entries: Iterable[HistoryEntry]) -> PastReader:
    past = PastReader()
    for entry in entries:
        past.add(entry)
    return past
