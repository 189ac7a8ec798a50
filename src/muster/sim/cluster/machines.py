"""Describe simulated machines: what is on sale, each machine as it truly is, and its size.

The truth about a machine's size is its `resize`. A host may put a change off, with or without saying what it
could give; it may fail halfway; calls get lost. SimResizer makes nodes count it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.cost import billed_s
from muster.cluster.model import CloudInstance, NodeKind, NodeType, Offer
from muster.cluster.states import ResizeStatus
from muster.errors import ProviderMisconfigured, Throttled
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

TAKES_S = (2.0, 15.0)


@dataclass
class CloudMachine:
    """One machine as it truly is, whatever is listed; it costs money until it ends."""

    cloud_id: CloudId
    node_type: str
    price_per_hour: float
    created_at: float
    kind: NodeKind = NodeKind.WORKER
    request_id: RequestId | None = None
    launch_hash: str = ""
    offer: Offer | None = None  # what it was launched from
    reports_offer: bool = False
    up: bool = False
    leaving: bool = False  # a terminate arrived
    ended_at: float | None = None
    ended_how: str = ""
    listed_from: float = 0.0
    hidden_until: float = 0.0
    listed_until: float = 0.0  # an ended machine may stay on the list for a while
    listed_type: str | None = None  # a type that it is listed with instead of the true one

    @property
    def ip(self) -> str:
        number = self.cloud_id.rpartition("-")[2]
        return f"10.0.{int(number) // 256}.{int(number) % 256}"

    @property
    def exists(self) -> bool:
        return self.ended_at is None

    def cost(self, now: float) -> float:
        """Return the cost so far, by the terms of its offer, else to the second."""
        end = now if self.ended_at is None else self.ended_at
        return billed_s(self.offer, end - self.created_at) * self.price_per_hour / 3600

    def answers(self, now: float) -> bool:
        """Return whether commands reach it."""
        return True

    def is_listed(self, now: float) -> bool:
        if now < self.listed_from or now < self.hidden_until:
            return False
        return self.exists or now < self.listed_until

    def shown(self, size: ResizeStatus | None = None) -> CloudInstance:
        offer = self.offer if self.reports_offer else None
        return CloudInstance(
            cloud_id=self.cloud_id,
            node_type=self.node_type if self.listed_type is None else self.listed_type,
            kind=self.kind,
            is_running=self.up and self.exists,
            request_id=self.request_id,
            launch_hash=self.launch_hash,
            internal_ip=self.ip,
            zone=offer.zone if offer else "",
            market=offer.market if offer else "",
            resize=size,
        )


@dataclass
class Catalogue:
    """Lists what is on sale: types, prices, boot times, and how many there are."""

    types: dict[str, NodeType]
    prices: dict[str, float]  # of types, and of offers by `model.health_key`
    boot_s: tuple[float, float] = (10.0, 40.0)
    capacity: dict[str, int] = field(default_factory=dict)  # per type, of this cluster; absent: any number
    quota: int | None = None  # all machines of the account
    api_s: float = 1.0  # from a launch call to the machine, or to the refusal
    shutdown_s: tuple[float, float] = (1.0, 8.0)
    ids_ignore_case: bool = False  # M-0001 is m-0001
    reports_offers: bool = False  # whether listed machines have their zone and market


@dataclass
class SizeCall:
    """One resize call as it arrived."""

    at: float
    cloud_id: CloudId
    desired: Resources
    before: ResizeStatus


@dataclass
class MachineSizes:
    """The sizes of all machines that can change them."""

    world: World
    faults: Faults
    draw: Stream
    now: dict[CloudId, ResizeStatus] = field(default_factory=dict)
    calls: list[SizeCall] = field(default_factory=list)

    def add(self, cloud_id: CloudId, known: NodeType | None) -> None:
        """Add a machine, when its type can grow."""
        if known is not None and known.resize is not None:
            size = Resources({name: known.resources.units(name) for name in known.resize.maximum})
            self.now[cloud_id] = ResizeStatus(current=size, desired=size)

    def ask(self, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        """Start a change; a newer one takes the place of one that is not done."""
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
