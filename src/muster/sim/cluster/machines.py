"""Simulates machines that change their size in place.

The truth about a machine's size is its `resize`. A host may put a change off, with or without saying what it
could give; it may fail halfway; calls get lost. Nodes are told to count it by SimResizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.machine_size import ResizeLimits, ResizeStatus
from muster.cluster.model import ClusterSpec, NodeType
from muster.errors import ProviderMisconfigured, Throttled
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

SHARE = 0.25  # of the runs
TIMEOUT_S = 40.0
TAKES_S = (2.0, 15.0)
NAMES = ("CPU", "memory")


def with_limits(draw: Stream, spec: ClusterSpec) -> ClusterSpec:
    """Lets machines of most worker types grow, in some of the runs."""
    if draw.random() >= SHARE:
        return spec
    head, *workers = spec.node_types
    return replace(spec, node_types=(head, *(_growing(draw, known) for known in workers)))


def _growing(draw: Stream, known: NodeType) -> NodeType:
    if draw.random() < 0.3:
        return known
    factor = draw.choice((2, 2, 4))
    most = Resources({name: known.resources.units(name) * factor for name in NAMES})
    return replace(known, resize=ResizeLimits(maximum=most, timeout_s=TIMEOUT_S))


@dataclass
class SizeCall:
    """A SizeCall is one resize call as it arrived."""

    at: float
    cloud_id: CloudId
    desired: Resources
    before: ResizeStatus


@dataclass
class MachineSizes:
    """MachineSizes are the sizes of all machines that can change them."""

    world: World
    faults: Faults
    draw: Stream
    now: dict[CloudId, ResizeStatus] = field(default_factory=dict)
    calls: list[SizeCall] = field(default_factory=list)

    def add(self, cloud_id: CloudId, known: NodeType | None) -> None:
        """Adds a machine, when its type can grow."""
        if known is not None and known.resize is not None:
            size = Resources({name: known.resources.units(name) for name in known.resize.maximum})
            self.now[cloud_id] = ResizeStatus(current=size, desired=size)

    def ask(self, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        """Starts a change; a newer one takes the place of one that is not done."""
        size, before = Resources.of(desired), self.now.get(cloud_id)
        if before is None:
            raise ProviderMisconfigured(f"simulated: {cloud_id} cannot be resized")
        self.calls.append(SizeCall(self.world.time, cloud_id, size, before))
        if self.faults.hit("resize_refused"):
            is_passing = self.faults.stream("resize_refused").random() < 0.5
            raise (Throttled if is_passing else ProviderMisconfigured)("simulated: resize refused")
        if self.faults.hit("resize_broken"):
            raise ConnectionError("simulated: the resize call broke")
        if self.faults.hit("resize_lost"):
            return
        asked = ResizeStatus(current=before.current, desired=size, in_progress=size != before.current)
        self.now[cloud_id] = asked
        grows = any(units > before.current.units(name) for name, units in size.items())
        if grows and self.faults.hit("resize_put_off"):
            self.now[cloud_id] = self._put_off(asked)
            return
        fails = grows and self.faults.hit("resize_fails")
        in_s = round(self.draw.uniform(*TAKES_S), 1)
        self.world.after(in_s, lambda: self._finish(cloud_id, asked, fails=fails))

    def _put_off(self, asked: ResizeStatus) -> ResizeStatus:
        draw = self.faults.stream("resize_put_off")
        if draw.random() < 0.4:
            return replace(asked, message="simulated: later")
        name = draw.choice(sorted(asked.desired))
        room = draw.choice((asked.current.units(name), asked.desired.units(name) // 2))
        return replace(
            asked, suggested_maximum=Resources({name: room}), message=f"simulated: {name} is scarce"
        )

    def _finish(self, cloud_id: CloudId, asked: ResizeStatus, *, fails: bool) -> None:
        if self.now.get(cloud_id) is not asked:
            return  # another change has been asked for meanwhile
        if not fails:
            self.now[cloud_id] = ResizeStatus(current=asked.desired, desired=asked.desired)
            return
        half = Resources({**asked.current, "CPU": asked.desired.units("CPU")})
        is_half = self.faults.stream("resize_fails").random() < 0.5
        current = half if is_half else asked.current
        self.now[cloud_id] = replace(asked, current=current, failed=True, message="simulated: no room")
