"""Run one seed on a simulated RayCluster: its configuration comes from the object, as in production."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace
from tests.simulation.checkers import Check
from tests.simulation.cluster import EditedSpec, FaultyCluster
from tests.simulation.kuberay import api, cloud
from tests.simulation.kuberay.cloud import KubeRayCloud
from tests.simulation.options import draw_options
from tests.simulation.run import SeedRun

from muster.base.rng import Seed
from muster.cluster.controller import Ports
from muster.cluster.model import ClusterSpec, DriverReport, IdleCluster, IdlePolicy, NodeType
from muster.providers.kuberay.client import KubeError
from muster.providers.kuberay.source import RayClusterSource
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import HEAD_TYPE, RunOptions

FAULTS = {**api.FAULTS, **cloud.FAULTS, "unused": (0.01, 0.05)}  # unused: per tick, no driver for a while
# The server invents, forgets and omits nothing. What is late is late because the watch is.
IMPOSSIBLE = (
    *("list_late", "list_omits", "list_ghost", "list_garbage", "list_only_head", "list_omits_passing"),
    *("list_twice", "type_tag_wrong"),
)
IDLE_SHARE = 0.25  # of the runs


def draw_kuberay_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed: no rack, no offers, no limit but those of the groups."""
    options = draw_options(seed)
    options.catalogue.quota = None
    types = tuple(replace(known, offers=()) for known in options.spec.node_types)
    draw = seed.derive("sim.kuberay.idle")
    idle = None
    if draw.random() < IDLE_SHARE:
        idle = IdleCluster(timeout_s=draw.choice((10.0, 60.0)), policy=draw.choice(tuple(IdlePolicy)))
    options.spec = replace(
        options.spec,
        node_types=types,
        max_nodes=None,
        check_launch_hash=False,
        install_runtime=False,  # pods bring it
        idle_cluster=idle,
    )
    options.shown |= {"cloud": "kuberay"}
    return options


class RayClusterSpec(EditedSpec):
    """The spec as the provider has last seen it in the object; edits are written there first."""

    def __init__(self, given: EditedSpec, of: KubeRayCloud) -> None:
        super().__init__(given.crash_points, given._faults, given.spec, given._sells)
        self._cloud, self._written = of, None
        self._source: RayClusterSource | None = None

    def write(self) -> None:
        """Write an edit into the object."""
        if self.spec is not self._written and self._cloud.is_there():
            self._cloud.follow(self.spec)
            self._written = self.spec

    def current(self) -> tuple[ClusterSpec, str]:
        _, problem = super().current()
        if self._source is None or self._source.provider is not self._cloud.provider:
            try:
                self._source = RayClusterSource(self._cloud.provider, {})
            except KubeError as error:
                return self.spec, str(error)
        found, trouble = self._source.current()
        self.spec = self._written = self._as_seen(found)
        return self.spec, problem or trouble

    def _as_seen(self, found: ClusterSpec) -> ClusterSpec:
        """Return the spec with what is in the object; the settings beside it are not part of it."""
        head, *workers = self.spec.node_types
        known = {t.name: t for t in workers}
        seen = {t.name: t for t in found.node_types[1:]}
        sold = self._cloud.sells.types
        missing = [replace(sold[name], offers=()) for name in seen if name not in known]
        types = [
            _seen(t, seen[t.name]) for t in (*workers, *missing) if t.name in seen and t.name != HEAD_TYPE
        ]
        return replace(self.spec, node_types=(head, *types), idle_cluster=found.idle_cluster)

    def _cluster(self, chosen: NodeType, draw: Any) -> None:
        """A RayCluster has no limit but those of its groups."""


def _seen(known: NodeType, seen: NodeType) -> NodeType:
    return replace(
        known,
        min_nodes=seen.min_nodes,
        max_nodes=seen.max_nodes,
        resources=seen.resources,
        labels=seen.labels,
        price_per_hour=seen.price_per_hour,
        resize=seen.resize,
    )


class KubeRayCluster(FaultyCluster):
    """The simulated cluster as a RayCluster."""

    cloud_class = KubeRayCloud
    cloud: KubeRayCloud
    spec: RayClusterSpec

    def __init__(self, seed: Seed, options: RunOptions, faults: Faults) -> None:
        draw = seed.derive("sim.kuberay.faults")
        for kind, (low, high) in FAULTS.items():
            on, rate = draw.random() < 0.5, draw.uniform(low, high)
            if on and faults.rates:
                faults.rates[kind] = round(rate, 4)
        for kind in IMPOSSIBLE:
            faults.rates.pop(kind, None)
        super().__init__(seed, options, faults)
        draw = seed.derive("sim.kuberay.hosts")
        names = [known.name for known in options.spec.node_types if known.name != HEAD_TYPE]
        self.cloud.hosts = {name: 2 for name in names if draw.random() < 0.25}
        self.cloud.is_tied = self._is_tied
        self.spec = RayClusterSpec(self.spec, self.cloud)
        self.spec.write()

    def _is_tied(self, machine: CloudMachine) -> bool:
        """Return whether another host of its slice is at work, or not there to be idle."""
        others = self.cloud.slice_of(machine)
        nodes = [self.runtime.node_on(other) for other in others]
        return any(node is None or node.running for node in nodes)

    def ports(self) -> Ports:
        return replaced(super().ports(), notices=self.cloud)

    def tick(self) -> None:
        self.spec.write()
        super().tick()
        if self.controller is None:
            self.cloud.stop()

    def lose_head(self, ticks_ago: int) -> None:
        super().lose_head(ticks_ago)
        if self.controller is None:
            self.cloud.stop()


class RaisesAreAskedFor:
    """Checks that a launch is in the object once, and raises it by no more than it asks."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._recreated = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if not isinstance(cluster, KubeRayCluster):
            return
        cloud = cluster.cloud
        if cloud.recreated != self._recreated:  # the new object knows of no launch
            self._recreated = cloud.recreated
            self._seen.clear()
        for requests, grown in cloud.raises:
            for again in sorted(requests & self._seen):
                yield f"the launch {again} was asked for twice"
            self._seen |= requests
            shapes = [
                call.shape
                for call in {c.request_id: c for c in cloud.launch_calls if c.request_id in requests}.values()
            ]
            for name, more in grown.items():
                asked = sum(shape.get(name, 0) for shape in shapes)
                if more > asked:
                    yield f"group {name} grew by {more}, and {asked} were asked for"
        cloud.raises.clear()


class KubeRayRun(SeedRun):
    """One seed of a RayCluster."""

    cluster_class = KubeRayCluster
    command_options = " --cloud kuberay"
    cluster: KubeRayCluster

    def __init__(self, seed: int, on_line: Any = None) -> None:
        logging.getLogger("muster.providers.kuberay").setLevel(logging.CRITICAL)
        super().__init__(seed, on_line)

    def draw_options(self) -> RunOptions:
        return draw_kuberay_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), RaisesAreAskedFor())

    def _inject_faults(self) -> None:
        super()._inject_faults()
        runtime, world = self.cluster.runtime, self.cluster.world
        if runtime.drivers is None:
            runtime.drivers = DriverReport(live=1)
        if self.faults.hit("unused"):
            runtime.drivers = DriverReport(live=0, last_end=world.now())
            in_s = self.faults.between("unused", 20, 200)
            world.after(in_s, lambda: setattr(runtime, "drivers", DriverReport(live=1)))

    def _apply_fault(self, kind: str, machine: CloudMachine) -> None:
        """A pod that is to be evicted says so; its node is drained by whoever reads that."""
        if kind != "preempted_with_notice":
            super()._apply_fault(kind, machine)
            return
        self.cluster.cloud.disrupted[machine.cloud_id] = "EvictionByEvictionAPI"
        self.cluster.world.after(30.0, lambda: self.cluster.cloud.end(machine, kind))
