"""Simulate a cloud provider with prices, boot times, shortages, quotas and every kind of failure.

The truth is in `machines`; what the controller sees passes through the faults. Launches are idempotent by
request id, as the port demands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from muster import errors
from muster.base.ids import CloudId, RequestId
from muster.base.rng import Stream
from muster.cluster.model import (
    CloudInstance,
    FailureKind,
    LaunchFailure,
    NodeKind,
    Offer,
    TerminateFailure,
    health_key,
)
from muster.cluster.plan import base_id
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine, MachineSizes
from muster.sim.cluster.world import World

REFUSALS: dict[FailureKind, type[errors.ProviderError]] = {
    FailureKind.CAPACITY: errors.CapacityExhausted,
    FailureKind.QUOTA: errors.QuotaExceeded,
    FailureKind.PERMISSION: errors.ProviderDenied,
    FailureKind.THROTTLED: errors.Throttled,
    FailureKind.CONFIG: errors.ProviderMisconfigured,
    FailureKind.UNKNOWN: errors.ProviderError,
}


@dataclass
class LaunchCall:
    """One launch call as it arrived; `refused` is set when the call raised."""

    at: float
    request_id: RequestId
    shape: dict[str, int]
    refused: FailureKind | None = None
    offer: str = ""


KINDS = tuple(REFUSALS)


def noticed_after_s(how: str) -> float:
    """Return how long the node of an ended machine lives on: one that vanishes is noticed after a while."""
    return 1.0 if how == "terminated" else 10.0


class SimCloud(CloudProvider):
    """Sells machines from its catalogue and keeps track of all of them."""

    id_prefix = "m"

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        self.crash_points = crash_points
        self.sells = sells
        self.machines: dict[CloudId, CloudMachine] = {}
        self.launch_calls: list[LaunchCall] = []
        self.terminated: list[tuple[float, CloudId]] = []  # every id of every terminate call
        self.on_up: Callable[[CloudMachine], None] = lambda machine: None
        self.on_gone: Callable[[CloudMachine], None] = lambda machine: None
        self.sizes = MachineSizes(world, faults, draw)
        self.listed: Mapping[CloudId, CloudInstance] | None = None  # the last answer; None: it failed
        self.failures_reported: list[LaunchFailure] = []  # every unit failure ever handed out
        self.installs_runtime = True
        self.is_passing: Callable[[CloudMachine], bool] = lambda machine: not machine.up
        self.is_tied: Callable[[CloudMachine], bool] = lambda machine: False  # another one at work keeps it
        self._looks, self._flaky_until = 0, 0.0
        self._world, self._faults, self._draw = world, faults, draw
        self._seen: set[RequestId] = set()
        self._sold_out_until: dict[str, float] = {}
        self._launch_failures: list[LaunchFailure] = []
        self._terminate_failures: list[TerminateFailure] = []
        self._ghosts: dict[CloudId, tuple[float, CloudInstance]] = {}

    # -- the port ---------------------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        is_resizable = any(known.resize is not None for known in self.sells.types.values())
        return ProviderTraits(
            installs_runtime=self.installs_runtime,
            buys_offers=True,
            resizable=is_resizable,
            ids_ignore_case=self.sells.ids_ignore_case,
        )

    def reconnect(self) -> None:
        """Drop what an adapter held in memory, because a new controller was started."""

    @crash_point("cloud.list_instances")
    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        self.listed = None
        self.listed = shown = self.list_now()
        if not self.sells.ids_ignore_case or not self._faults.hit("list_other_case"):
            return shown
        return {(name := CloudId(m.cloud_id.upper())): replace(m, cloud_id=name) for m in shown.values()}

    def list_now(self) -> dict[CloudId, CloudInstance]:
        """Return what the cloud lists now, faults included."""
        now, faults = self._world.time, self._faults
        if faults.hit("list_fails_often"):
            self._flaky_until = now + faults.between("list_fails_often", 20, 150)
        self._looks += 1
        if faults.hit("list_fails") or (now < self._flaky_until and self._looks % 3 and not faults.stopped):
            raise ConnectionError("simulated: the cloud's list cannot be read")
        if faults.hit("list_omits"):
            for_s, alive = faults.between("list_omits", 5, 90), self.alive()
            if alive:
                faults.stream("list_omits").choice(alive).hidden_until = now + for_s
        if faults.hit("list_ghost"):
            self._add_ghost("list_ghost", next(iter(self.sells.types)), NodeKind.WORKER)
        if faults.hit("list_garbage"):
            is_unmanaged = faults.stream("list_garbage").random() < 0.5
            kind = NodeKind.UNMANAGED if is_unmanaged else NodeKind.WORKER
            self._add_ghost("list_garbage", "cpu-4" if is_unmanaged else "", kind)
        sizes = self.sizes.now
        shown = {
            m.cloud_id: m.shown(sizes.get(m.cloud_id)) for m in self.machines.values() if m.is_listed(now)
        }
        self._omit_once(shown)
        for cloud_id, (until, ghost) in self._ghosts.items():
            if now < until:
                shown[cloud_id] = ghost
        if shown and faults.hit("list_twice"):
            twin = shown[faults.stream("list_twice").choice(sorted(shown))]
            shown[CloudId(f"{twin.cloud_id}-2")] = replace(twin, cloud_id=CloudId(f"{twin.cloud_id}-2"))
        return shown

    @crash_point("cloud.launch")
    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        offer = offers[0] if offers else None
        call = LaunchCall(
            self._world.time, request_id, dict(shape), offer="" if offer is None else offer.name
        )
        self.launch_calls.append(call)
        faults = self._faults
        if faults.hit("launch_refused"):
            call.refused = faults.stream("launch_refused").choice(KINDS)
            raise REFUSALS[call.refused](f"simulated: refused ({call.refused.value})")
        if faults.hit("launch_broken"):
            raise ConnectionError("simulated: the launch call broke")
        if request_id in self._seen or faults.hit("launch_dropped"):
            return
        self._seen.add(request_id)
        slow = faults.between("launch_slow", 10, 150) if faults.hit("launch_slow") else 0.0
        for name, count in shape.items():
            for _ in range(count):
                self._world.after(
                    self.sells.api_s + slow,
                    lambda name=name: self._buy(request_id, name, offer),  # type: ignore[misc]
                )
        if faults.hit("launch_reply_lost"):
            raise TimeoutError("simulated: the reply to the launch call was lost")

    @crash_point("cloud.terminate")
    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        if self.sells.ids_ignore_case:
            cloud_ids = [CloudId(name.lower()) for name in cloud_ids]
        self.terminated.extend((self._world.time, cloud_id) for cloud_id in cloud_ids)
        faults = self._faults
        if faults.hit("terminate_refused"):
            raise REFUSALS[faults.stream("terminate_refused").choice(KINDS)]("simulated: terminate refused")
        for cloud_id in cloud_ids:
            self._start_ending(cloud_id)

    @crash_point("cloud.resize")
    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        self.sizes.ask(CloudId(cloud_id.lower()) if self.sells.ids_ignore_case else cloud_id, desired)

    @crash_point("cloud.poll_launch_failures")
    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        failures, self._launch_failures = tuple(self._launch_failures), []
        self.failures_reported.extend(failures)
        return failures

    @crash_point("cloud.poll_terminate_failures")
    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        failures, self._terminate_failures = tuple(self._terminate_failures), []
        return failures

    # -- what happens in the world ----------------------------------------------------------------

    def find(self, cloud_id: CloudId) -> CloudMachine | None:
        """Return a machine by its id, however it is spelled."""
        return self.machines.get(CloudId(cloud_id.lower()) if self.sells.ids_ignore_case else cloud_id)

    def alive(self) -> list[CloudMachine]:
        return [machine for machine in self.machines.values() if machine.exists]

    def bill(self) -> float:
        """Return the $ of every machine ever sold, to the second."""
        return sum(machine.cost(self._world.time) for machine in self.machines.values())

    def sell_out(self, name: str, for_s: float) -> None:
        """End the sale of a type, or of one offer by `model.health_key`, for a while."""
        self._sold_out_until[name] = self._world.time + for_s

    def end_shortages(self) -> None:
        """End every shortage: everything can be launched again, and wrong tags are set right."""
        self._sold_out_until.clear()
        self.sells.capacity.clear()
        self.sells.quota = None
        for machine in self.machines.values():
            machine.listed_type = None

    def create(
        self,
        node_type: str,
        kind: NodeKind = NodeKind.WORKER,
        request: RequestId | None = None,
        offer: Offer | None = None,
    ) -> CloudMachine:
        """Create a machine; it starts to boot and to cost."""
        known = self.sells.types.get(node_type)
        priced_as = node_type if offer is None else health_key(node_type, offer.name)
        machine = CloudMachine(
            cloud_id=CloudId(f"{self.id_prefix}-{len(self.machines) + 1:04d}"),
            node_type=node_type,
            price_per_hour=self.sells.prices.get(priced_as, 0.0),
            offer=offer,
            reports_offer=self.sells.reports_offers,
            created_at=self._world.time,
            kind=kind,
            request_id=request,
            launch_hash=known.launch_hash if known else "",
            listed_from=self._world.time,
        )
        self.machines[machine.cloud_id] = machine
        self.sizes.add(machine.cloud_id, known)
        return machine

    def boot(self, machine: CloudMachine, in_s: float) -> None:
        self._world.after(in_s, lambda: self._up(machine))

    def end(self, machine: CloudMachine, how: str) -> None:
        """End the machine and its cost; the listing may still show it."""
        if not machine.exists:
            return
        machine.ended_at, machine.ended_how = self._world.time, how
        if self._faults.hit("list_ghost"):
            machine.listed_until = self._world.time + self._faults.between("list_ghost", 5, 60)
        self.on_gone(machine)

    def _buy(self, request_id: RequestId, node_type: str, offer: Offer | None) -> None:
        refused = self.refusal(node_type, offer)
        if refused is not None:
            is_named = offer is not None and self._faults.hit("refusal_names_offer")
            self._launch_failures.append(
                LaunchFailure(
                    request_id=request_id,
                    node_type=node_type,
                    kind=refused,
                    message=f"no {node_type} available",
                    offer=offer.name if offer is not None and is_named else "",
                )
            )
            return
        if not self._faults.hit("unit_dropped"):
            self.deliver(node_type, request_id, offer)

    def refusal(self, node_type: str, offer: Offer | None = None) -> FailureKind | None:
        """Return why one machine is refused, by a shortage or a fault; None when it is sold."""
        refused = self._why_not(node_type, offer)
        if refused is None and self._faults.hit("unit_refused"):
            return self._faults.stream("unit_refused").choice(KINDS)
        return refused

    def deliver(
        self, node_type: str, request_id: RequestId | None, offer: Offer | None = None
    ) -> CloudMachine:
        """Create and boot a machine that was launched; it may be listed late."""
        machine = self.create(node_type, request=request_id, offer=offer)
        if self._faults.hit("list_late"):
            machine.listed_from = self._world.time + self._faults.between("list_late", 5, 100)
        if self._faults.hit("type_tag_wrong"):
            machine.listed_type = self._wrong_type(request_id)
        boot_s = self.draw_boot_s()
        if self._faults.hit("joins_first"):
            machine.listed_from = self._world.time + boot_s + self._faults.between("joins_first", 5, 90)
        self.boot(machine, boot_s)
        return machine

    def _wrong_type(self, request_id: RequestId | None) -> str:
        """Draw the type that a machine is listed with; another one of the same call cannot be noticed."""
        calls = (
            call
            for call in self.launch_calls
            if request_id and base_id(call.request_id) == base_id(request_id)
        )
        asked = {name for call in calls for name in call.shape}
        wrong = ("", "renamed", *sorted(self.sells.types.keys() - asked))
        return self._faults.stream("type_tag_wrong").choice(wrong)

    def draw_boot_s(self) -> float:
        """Draw how long the next machine takes from its purchase to its node."""
        return round(self._draw.uniform(*self.sells.boot_s), 1)

    def _why_not(self, node_type: str, offer: Offer | None) -> FailureKind | None:
        if node_type not in self.sells.types:
            return FailureKind.CONFIG
        names = (node_type, health_key(node_type, offer.name if offer is not None else ""))
        if any(self._world.time < self._sold_out_until.get(name, 0.0) for name in names):
            return FailureKind.CAPACITY
        have = [machine.node_type for machine in self.alive()]
        if have.count(node_type) >= self.sells.capacity.get(node_type, len(have) + 1):
            return FailureKind.CAPACITY
        if self.sells.quota is not None and len(have) >= self.sells.quota:
            return FailureKind.QUOTA
        return None

    def _up(self, machine: CloudMachine) -> None:
        if machine.exists:
            machine.up = True
            self.on_up(machine)

    def _start_ending(self, cloud_id: CloudId) -> None:
        machine, faults = self.machines.get(cloud_id), self._faults
        if machine is None or not machine.exists or machine.leaving:
            return
        if faults.hit("terminate_unit_refused"):
            kind = faults.stream("terminate_unit_refused").choice(KINDS)
            refused = TerminateFailure(cloud_id=cloud_id, kind=kind, message="simulated")
            self._terminate_failures.append(refused)
            return
        if faults.hit("terminate_lost"):
            return
        slow = faults.between("terminate_slow", 10, 90) if faults.hit("terminate_slow") else 0.0
        machine.leaving = True
        self._world.after(
            slow + round(self._draw.uniform(*self.sells.shutdown_s), 1),
            lambda: self.end(machine, "terminated"),
        )

    def _omit_once(self, shown: dict[CloudId, CloudInstance]) -> None:
        """Leave out of this one list all but the head, or one that boots, drains or has no node."""
        faults = self._faults
        if faults.hit("list_only_head"):
            for cloud_id in [c for c, machine in shown.items() if machine.kind is not NodeKind.HEAD]:
                del shown[cloud_id]
        passing = [c for c in shown if c in self.machines and self.is_passing(self.machines[c])]
        if passing and faults.hit("list_omits_passing"):
            del shown[faults.stream("list_omits_passing").choice(passing)]

    def _add_ghost(self, fault: str, node_type: str, kind: NodeKind) -> None:
        cloud_id = CloudId(f"ghost-{len(self._ghosts) + 1}")
        ghost = CloudInstance(cloud_id=cloud_id, node_type=node_type, kind=kind)
        self._ghosts[cloud_id] = (self._world.time + self._faults.between(fault, 5, 60), ghost)
