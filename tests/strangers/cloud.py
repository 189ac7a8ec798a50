"""A cloud that answers late, twice, wrongly or not at all, over the machines that really exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.strangers.truth import Machine, World

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import (
    CloudInstance,
    FailureKind,
    LaunchFailure,
    NodeKind,
    Notice,
    NoticeKind,
    Offer,
    TerminateFailure,
)
from muster.cluster.ports import CloudProvider, NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.errors import CapacityExhausted, ProviderDenied, Throttled

MACHINE_QUIRKS = (
    "tag-request-lost",
    "tag-request-case",
    "tag-type-lost",
    "tag-type-changed",
    "tag-type-case",
    "listed-twice",
    "node-id-case",
    "node-without-id",
    "node-without-ip",
    "node-without-both",
    "node-stays-unknown",
    "node-cloned-id",
    "node-twice",
    "node-never",
)

WRONG_ID = frozenset({"node-without-id", "node-cloned-id"})
WITHOUT_EACH = frozenset({"node-without-id", "node-without-ip"})


@dataclass
class Cloud:
    """The cloud itself: it outlives every process of the autoscaler."""

    world: World
    installs_runtime: bool = True
    requests: dict[str, tuple[Mapping[str, int], list[Machine]]] = field(default_factory=dict)
    on_made: Callable[[str, list[Machine]], None] = lambda request_id, made: None
    sold_out_until: dict[str, float] = field(default_factory=dict)

    def start_head(self) -> Machine:
        world = self.world
        known = world.spec.node_type(world.spec.head_node_type)
        assert known is not None
        head = self._made(known.name, None, known.offers[0] if known.offers else None)
        head.is_head, head.boots_at, head.quirks, head.listed_from = True, None, frozenset(), world.t
        head.shown_type, head.shown_request = known.name, None
        world.join(head, is_head=True)
        return head

    def make(self, request_id: str, shape: Mapping[str, int], offers: Sequence[Offer]) -> list[LaunchFailure]:
        """Make machines once per request id, and return the units that are refused."""
        if request_id in self.requests:
            return []
        made: list[Machine] = []
        self.requests[request_id] = (shape, made)
        refused: list[LaunchFailure] = []
        if self.world.hit("launch-swallowed"):
            return refused
        for node_type, count in shape.items():
            for _ in range(count):
                names = offers or (None,)
                offer = next((o for o in names if not self._is_sold_out(node_type, o)), "none")
                if offer == "none":
                    refused.append(_sold_out(request_id, node_type, offers[0] if offers else None))
                else:
                    made.append(self._made(node_type, request_id, offer))
                    if len(shape) > 1:  # the request alone does not show the type
                        made[-1].shown_type = node_type
        self.on_made(request_id, made)
        return refused

    def start_by_hand(self, node_type: str) -> Machine:
        """Somebody starts a machine for the cluster, without the autoscaler."""
        known = self.world.spec.node_type(node_type)
        machine = self._made(node_type, None, known.offers[0] if known and known.offers else None)
        machine.shown_type = node_type  # without request and type nobody could know whose it is
        return machine

    def _is_sold_out(self, node_type: str, offer: Offer | None) -> bool:
        key = f"{node_type} {offer.name if offer else ''}"
        if self.world.hit("sold-out"):
            self.sold_out_until[key] = self.world.t + self.world.stream("stock").uniform(30, 200)
        return not self.world.is_calm and self.sold_out_until.get(key, 0.0) > self.world.t

    def _made(self, node_type: str, request_id: str | None, offer: Offer | None) -> Machine:
        world = self.world
        known = next(t for t in (*world.spec.node_types, *world.retired) if t.name == node_type)
        draw = world.stream("boots")
        machine = Machine(
            world.fresh("i-0a"),
            node_type,
            world.t,
            world.fresh_ip(),
            known.resources,
            request_id=request_id,
            offer=offer,
            price=(offer.price_per_hour if offer else known.price_per_hour) or 0.0,
            quirks=frozenset(quirk for quirk in MACHINE_QUIRKS if world.hit(quirk)),
            shown_type=node_type,
            shown_request=request_id,
            listed_from=world.t + draw.uniform(0, 15),
            listed_for_s=draw.uniform(0, 20),
        )
        boot_s = draw.uniform(20, 90)
        machine.boots_at = world.t + boot_s if self.installs_runtime else None
        self._mark(machine, boot_s)
        world.machines.append(machine)
        return machine

    def _mark(self, machine: Machine, boot_s: float) -> None:
        """Give a machine the lasting faults that were drawn for it."""
        world = self.world
        if "node-stays-unknown" in machine.quirks:
            machine.quirks = machine.quirks - WITHOUT_EACH | {"node-without-both"}
        elif machine.quirks & WRONG_ID:
            machine.quirks -= {"node-without-ip"}  # one of the two is right
        if any(quirk.startswith("tag-type") for quirk in machine.quirks):
            machine.quirks -= {"tag-request-lost", "tag-request-case"}  # one of the tags is right
        limits = world.spec.timeouts
        self._mark_tags(machine)
        if "node-cloned-id" in machine.quirks and world.machines:
            machine.borrowed_id = world.stream("clones").choice(world.machines).cloud_id
        if world.hit("list-late"):
            machine.listed_from = world.t + world.stream("lists").uniform(0.1, 0.3) * limits.request_s
        if world.hit("list-lingers"):
            machine.listed_for_s = world.stream("lists").uniform(20, 150)
        if "node-never" in machine.quirks:
            machine.boots_at = None
        elif world.hit("node-late") and machine.boots_at is not None:
            machine.boots_at = world.t + boot_s + world.stream("late").uniform(0.5, 1.5) * limits.allocate_s

    def _mark_tags(self, machine: Machine) -> None:
        quirks, tag = machine.quirks, machine.shown_request
        if tag:
            machine.shown_request = tag.upper() if "tag-request-case" in quirks else tag
        if "tag-request-lost" in quirks:
            machine.shown_request = None
        if "tag-type-lost" in quirks:
            machine.shown_type = ""
        elif "tag-type-case" in quirks:
            machine.shown_type = machine.node_type.upper()
        elif "tag-type-changed" in quirks:
            machine.shown_type = self.world.stream("tags").choice(self.world.spec.node_types).name

    def shown(self) -> dict[CloudId, CloudInstance]:
        """Return the list as the cloud answers now."""
        found: dict[CloudId, CloudInstance] = {}
        for machine in self.world.machines:
            if machine.gone_at is not None and self.world.t > machine.gone_at + machine.listed_for_s:
                continue
            if self.world.hit("list-misses"):
                machine.hidden_until = self.world.t + self.world.stream("lists").uniform(5, 120)
            if self.world.t < machine.listed_from or self.world.t < machine.hidden_until:
                continue
            machine.was_listed = True
            names = (machine.cloud_id, machine.cloud_id.upper())
            for name in names if "listed-twice" in machine.quirks else names[:1]:
                found[CloudId(name)] = _entry(machine, name)
        return found


def _entry(machine: Machine, name: str) -> CloudInstance:
    return CloudInstance(
        cloud_id=CloudId(name),
        node_type=machine.shown_type,
        kind=NodeKind.HEAD if machine.is_head else NodeKind.WORKER,
        request_id=RequestId(machine.shown_request) if machine.shown_request else None,
        internal_ip=machine.ip,
        zone=machine.offer.zone if machine.offer else "",
        market=machine.offer.market if machine.offer else "",
    )


def _sold_out(request_id: str, node_type: str, offer: Offer | None) -> LaunchFailure:
    return LaunchFailure(
        request_id=RequestId(request_id),
        node_type=node_type,
        kind=FailureKind.CAPACITY,
        message="sold out",
        offer=offer.name if offer else "",
    )


class CloudClient(CloudProvider):
    """The provider of one process: what it has not delivered or polled is lost with the process."""

    def __init__(self, cloud: Cloud, *, buys_offers: bool, takes_next_offer: bool) -> None:
        self.cloud, self.world = cloud, cloud.world
        self._traits = ProviderTraits(
            installs_runtime=cloud.installs_runtime,
            buys_offers=buys_offers,
            takes_next_offer=takes_next_offer,
            ids_ignore_case=True,  # as its lists do
        )
        self._launch_failures: list[LaunchFailure] = []
        self._terminate_failures: list[TerminateFailure] = []
        self._slow: dict[str, tuple[float, Mapping[str, int], Sequence[Offer]]] = {}

    def traits(self) -> ProviderTraits:
        return self._traits

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        self._deliver()
        if self.world.hit("list-fails"):
            raise ConnectionError("the list is not available")
        return self.cloud.shown()

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        self._deliver()
        if request_id in self._slow:
            return
        if self.world.hit("launch-call-lost"):
            raise TimeoutError("no connection")
        if self.world.hit("launch-refused"):
            # A cloud that has served a request id does not find it sold out, but may not get to look at it.
            kinds = (ProviderDenied, Throttled, CapacityExhausted)
            known = kinds[:2] if request_id in self.cloud.requests else kinds
            raise self.world.stream("refusals").choice(known)("not now")
        if self.world.hit("launch-slow"):
            due = self.world.t + self.world.stream("slow").uniform(5, 40)
            self._slow[request_id] = (due, shape, offers)
            return
        self._launch_failures += self.cloud.make(request_id, shape, offers)
        if self.world.hit("launch-reply-lost"):
            raise TimeoutError("no reply")

    def _deliver(self) -> None:
        for request_id, (due, shape, offers) in tuple(self._slow.items()):
            if self.world.t >= due:
                del self._slow[request_id]
                self._launch_failures += self.cloud.make(request_id, shape, offers)

    def withdraw(self, request_id: RequestId) -> None:
        """Drop a launch that still waits here."""
        self._slow.pop(request_id, None)

    def under_way(self, request_id: RequestId) -> bool:
        return request_id in self._slow

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        if self.world.hit("terminate-call-lost"):
            raise TimeoutError("no connection")
        for cloud_id in cloud_ids:
            machine = self.world.machine(cloud_id)
            if machine is not None and machine.ends_at is None:
                self._end(machine)
        if self.world.hit("terminate-reply-lost"):
            raise TimeoutError("no reply")

    def _end(self, machine: Machine) -> None:
        if self.world.hit("terminate-refused"):
            failure = TerminateFailure(cloud_id=CloudId(machine.cloud_id), message="busy, try again")
            self._terminate_failures.append(failure)
        elif not self.world.hit("terminate-ignored"):
            most_s = 120.0 if self.world.hit("terminate-slow") else 25.0
            machine.ends_at = self.world.t + self.world.stream("ends").uniform(2.0, most_s)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        found, self._launch_failures = self._launch_failures, []
        return found

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        found, self._terminate_failures = self._terminate_failures, []
        return found


class Notices:
    """Announces machines that the cloud takes; deadlines are by the wall clock."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def read(self) -> NoticeReport:
        world = self._cloud.world
        for machine in world.alive():
            if machine.is_head or machine.taken_at is not None or world.node_on(machine) is None:
                continue
            if world.hit("interruption"):
                machine.taken_at = world.t + world.stream("notice").uniform(30, 150)
        ahead_s = world.clock.now() - world.t
        known = (m for m in world.machines if m.taken_at is not None and world.t < m.taken_at + 60)
        return NoticeReport(notices=tuple(_notice(m, ahead_s) for m in known))


def _notice(machine: Machine, ahead_s: float) -> Notice:
    return Notice(
        cloud_id=CloudId(machine.cloud_id),
        kind=NoticeKind.INTERRUPTION,
        deadline=(machine.taken_at or 0.0) + ahead_s,
    )
