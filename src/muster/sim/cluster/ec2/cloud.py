"""Puts the simulated calls of EC2 behind the port, as a provider over them does it.

A launch is a fleet with the request as its token, repeated until its outcome is known; stopped machines of
the same offer are started before new ones are bought. A controller that is started again remembers nothing:
its outbox repeats the request, and the token and the tags show what was bought for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.base.ids import CloudId, RequestId
from muster.base.rng import Stream
from muster.cluster.model import CloudInstance, FailureKind, LaunchFailure, NodeKind, Offer
from muster.sim.cluster.cloud import REFUSALS, Catalogue, CloudMachine, LaunchCall, SimCloud
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.ec2.api import CODES, SUBNET, TAG_REQUEST, TAG_TYPE, Ec2Refusal, FaultyEc2
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

ZONES = ("a", "b", "c")
LATE_S = 60.0  # a new machine is described at the latest after this
_KINDS = {code: kind for kind, code in CODES.items()}
_NOT_FOUND = "InvalidInstanceID.NotFound"


@dataclass(frozen=True)
class FleetOrder:
    """A FleetOrder is one node type of a launch request."""

    request_id: RequestId
    node_type: str
    count: int
    offer: Offer | None
    may_start_stopped: bool  # False: it may be repeated, and what it bought may not be listed yet

    @property
    def token(self) -> str:
        return f"{self.request_id} {self.node_type}"


class Ec2Cloud(SimCloud):
    """An Ec2Cloud is a SimCloud whose machines are bought by the calls of EC2."""

    keeps_stopped = False

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.api = FaultyEc2(world, faults, self.machines, self._sold, self.refusal)
        self.api.on_end, self.api.on_start = self._ended, self._started_again
        self.retired: list[CloudMachine] = []  # earlier lives of machines that were stopped and started
        self._orders: dict[str, FleetOrder] = {}  # by token: the outcome is not known yet
        self._terms: dict[str, Offer] = {}  # by type and name: what is paid for an offer
        self._taken: set[str] = set()  # tokens
        self._since = 0.0  # when this controller was started

    def reconnect(self) -> None:
        self._orders.clear()
        self._taken.clear()
        self._since = self._world.time

    # -- the port ---------------------------------------------------------------------------------

    @crash_point("cloud.list_instances")
    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Makes the open orders again first: a tick lists once."""
        self.listed = None
        for order in tuple(self._orders.values()):
            self._try(order)
        known = self._described()
        shown = self.list_now()  # whatever is wrong with lists elsewhere is wrong with this one, too
        self.listed = {name: one for name, one in shown.items() if name in known or name not in self.machines}
        return self.listed

    def under_way(self, request_id: RequestId) -> bool:
        return any(order.request_id == request_id for order in self._orders.values())

    def _launch(self, request_id: RequestId, shape: Mapping[str, int], offer: Offer | None) -> None:
        name = "" if offer is None else offer.name
        self.launch_calls.append(LaunchCall(self._world.time, request_id, dict(shape), offer=name))
        for node_type, count in shape.items():
            is_new = self.keeps_stopped and self._world.time - self._since > LATE_S
            order = FleetOrder(request_id, node_type, count, offer, is_new)
            if order.token not in self._taken:
                self._taken.add(order.token)
                self._orders[order.token] = order
                self._try(order)

    @crash_point("cloud.terminate")
    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.terminated.extend((self._world.time, cloud_id) for cloud_id in cloud_ids)
        kept = [c for c in cloud_ids if self.keeps_stopped and self._can_stop(c)]
        self._end_all("stop_instances", kept)
        self._end_all("terminate_instances", [c for c in cloud_ids if c not in kept])

    # -- buying -----------------------------------------------------------------------------------

    def _try(self, order: FleetOrder) -> None:
        """Makes the calls of an order; it stays open while their outcome is not known."""
        try:
            started = self._start_stopped(order)
            self._buy_rest(order, started)
        except Ec2Refusal as error:
            kind = _KINDS.get(error.code, FailureKind.UNKNOWN)
            if kind is not FailureKind.THROTTLED:  # else again, with the same token
                self._fail(order, order.count - self._count_made(order), kind, str(error))
                self._orders.pop(order.token, None)
        except (ConnectionError, TimeoutError):
            pass  # it may have been made: again, with the same token

    def _start_stopped(self, order: FleetOrder) -> int:
        """Returns how many machines of the order were stopped ones; they are tagged first, then started."""
        described = self._instances() if self.keeps_stopped else []
        mine = [one["InstanceId"] for one in described if _tag(one, TAG_REQUEST) == order.request_id]
        mine = [name for name in mine if self._is_reused(CloudId(name), order)]
        free = [
            m.cloud_id
            for m in self.api.stopped.values()
            if self._matches(m, order) and m.cloud_id not in mine
        ]
        chosen = free[: order.count] if order.may_start_stopped and not mine else []
        if chosen:
            tag = {"Key": TAG_REQUEST, "Value": order.request_id}
            self.api.create_tags(Resources=chosen, Tags=[tag])
        names = [*mine, *chosen]
        if names:
            try:
                self.api.start_instances(InstanceIds=names)
            except Ec2Refusal as error:
                if _KINDS.get(error.code) is not FailureKind.CAPACITY:
                    raise
        return len(names)

    def _is_reused(self, name: CloudId, order: FleetOrder) -> bool:
        machine = self.machines.get(name)
        return machine is not None and machine.node_type == order.node_type and self._was_stopped(name)

    def _was_stopped(self, name: CloudId) -> bool:
        return name in self.api.stopped or any(one.cloud_id == name for one in self.retired)

    def _matches(self, machine: CloudMachine, order: FleetOrder) -> bool:
        """A machine of an older launch config would be ended as outdated, and started again, for ever."""
        known = self.sells.types.get(order.node_type)
        is_current = known is not None and known.launch_hash == machine.launch_hash
        name = machine.offer.name if machine.offer is not None else ""
        wanted = order.offer.name if order.offer is not None else ""
        return is_current and machine.node_type == order.node_type and name == wanted

    def _buy_rest(self, order: FleetOrder, started: int) -> None:
        count = order.count - started
        answer = self.api.create_fleet(**self._fleet(order, count)) if count > 0 else {"Errors": []}
        self._orders.pop(order.token, None)
        missing = order.count - self._count_made(order)
        errors = answer["Errors"]
        kind = _KINDS.get(errors[0]["ErrorCode"], FailureKind.UNKNOWN) if errors else FailureKind.CAPACITY
        message = errors[0]["ErrorMessage"] if errors else "fewer machines than asked for, without a reason"
        self._fail(order, missing, kind, message)

    def _fleet(self, order: FleetOrder, count: int) -> dict[str, Any]:
        known = self.sells.types.get(order.node_type)
        market = order.offer.market if order.offer else known.market if known else "on-demand"
        zones = (order.offer.zone,) if order.offer else ZONES
        if order.offer is not None:
            self._terms[f"{order.node_type} {order.offer.name}"] = order.offer
        tags = {TAG_REQUEST: order.request_id, TAG_TYPE: order.node_type}
        return {
            "Type": "instant",
            "ClientToken": order.token,
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": count,
                "DefaultTargetCapacityType": market,
            },
            "LaunchTemplateConfigs": [
                {
                    "Overrides": [
                        {"SubnetId": f"{SUBNET}{zone}", "Priority": float(rank)}
                        for rank, zone in enumerate(zones)
                    ]
                }
            ],
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
            ],
        }

    def _count_made(self, order: FleetOrder) -> int:
        """Counts the machines of an order by what its calls answered, not by what is listed."""
        lives = (m for m in self.machines.values() if m.request_id == order.request_id)
        return sum(m.node_type == order.node_type and m.cloud_id not in self.api.stopped for m in lives)

    def _fail(self, order: FleetOrder, missing: int, kind: FailureKind, message: str) -> None:
        failure = LaunchFailure(
            request_id=order.request_id,
            node_type=order.node_type,
            kind=kind,
            message=message,
            offer=order.offer.name if order.offer else "",
        )
        self._launch_failures.extend([failure] * max(0, missing))

    # -- what the calls do ------------------------------------------------------------------------

    def _sold(self, node_type: str, request_id: RequestId | None, offer: Offer) -> CloudMachine:
        terms = self._terms.get(f"{node_type} {offer.name}")
        machine = self.deliver(node_type, request_id, terms)
        if self._faults.hit("describe_late"):
            late_s = self._faults.between("describe_late", 2, LATE_S)
            machine.listed_from = max(machine.listed_from, self._world.time + late_s)
        return machine

    def _started_again(self, machine: CloudMachine, request_id: RequestId) -> None:
        """The machine has a new life under its id; the old one is kept for the bill."""
        self.retired.append(machine)
        again = self.create(machine.node_type, request=request_id, offer=machine.offer)
        del self.machines[again.cloud_id]
        again.cloud_id, again.launch_hash = machine.cloud_id, machine.launch_hash
        self.machines[machine.cloud_id] = again
        self.boot(again, round(self._draw.uniform(*self.sells.boot_s), 1))

    def _can_stop(self, cloud_id: CloudId) -> bool:
        machine = self.machines.get(cloud_id)
        if machine is None or not machine.exists or machine.kind is not NodeKind.WORKER:
            return False
        known = self.sells.types.get(machine.node_type)
        bought = machine.offer or known
        return bought is not None and bought.market != "spot"

    def _end_all(self, call: str, cloud_ids: Sequence[CloudId]) -> None:
        """Ends what can be; those that the call does not know are reported, and the rest is asked again."""
        left = [c for c in cloud_ids if self.machines.get(c) is not None and self.machines[c].exists]
        try:
            if left:
                getattr(self.api, call)(InstanceIds=left)
        except Ec2Refusal as error:
            if error.code != _NOT_FOUND:
                raise REFUSALS[_KINDS.get(error.code, FailureKind.UNKNOWN)](str(error)) from None
            unknown = [c for c in left if c in str(error)]
            for cloud_id in unknown:
                self._refuse_to_end(cloud_id, FailureKind.UNKNOWN, str(error))
            self._end_all(call, [c for c in left if c not in unknown])

    def _ended(self, machine: CloudMachine, how: str) -> None:
        if how == "stopped":
            self.end(machine, how)
        else:
            self._start_ending(machine.cloud_id)

    def bill(self) -> float:
        return super().bill() + sum(machine.cost(self._world.time) for machine in self.retired)

    def end_shortages(self) -> None:
        super().end_shortages()
        self.api.stock.end_shortages()

    def _instances(self) -> list[dict[str, Any]]:
        answer = self.api.describe_instances()
        return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]

    def _described(self) -> set[str]:
        """Returns the ids of what is there and not stopped; raises when the list cannot be read."""
        try:
            shown = self._instances()
        except Ec2Refusal as error:
            raise REFUSALS[_KINDS.get(error.code, FailureKind.UNKNOWN)](str(error)) from None
        return {one["InstanceId"] for one in shown if one["State"]["Name"] != "stopped"}


def _tag(instance: Mapping[str, Any], key: str) -> str:
    return next((tag["Value"] for tag in instance["Tags"] if tag["Key"] == key), "")
