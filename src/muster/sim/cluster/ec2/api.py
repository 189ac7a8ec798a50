"""Simulates the calls of EC2, with its answers and errors as they are, over the machines of a SimCloud.

Fleets of type instant with partial results and an error per override, client tokens, throttling, stock per
(type, zone, market), machines that new calls do not know yet, stopped machines that are started again. The
parameters and answers have the shape of boto3's; a simulated subnet is named after its zone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind, NodeKind, Offer, health_key
from muster.sim.cluster.cloud import CloudMachine
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

SUBNET = "subnet-"
TAG_REQUEST, TAG_TYPE, TAG_HASH = "muster-launch-request", "ray-user-node-type", "ray-launch-config"
CODES = {
    FailureKind.CAPACITY: "InsufficientInstanceCapacity",
    FailureKind.QUOTA: "VcpuLimitExceeded",
    FailureKind.PERMISSION: "UnauthorizedOperation",
    FailureKind.THROTTLED: "RequestLimitExceeded",
    FailureKind.CONFIG: "InvalidLaunchTemplateName.NotFoundException",
    FailureKind.UNKNOWN: "InternalError",
}


class Ec2Refusal(Exception):
    """An Ec2Refusal is an error answer of EC2, with its code where boto3 has it."""

    def __init__(self, code: str, message: str = "simulated") -> None:
        self.response = {"Error": {"Code": code, "Message": message}}
        super().__init__(f"{code}: {message}")

    @property
    def code(self) -> str:
        return self.response["Error"]["Code"]


class StockOfPools:
    """A StockOfPools is how many machines of each (type, zone, market) can exist now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._limits: dict[str, tuple[int, float]] = {}  # by `model.health_key`: how many, until when

    def limit(self, pool: str, count: int, for_s: float) -> None:
        self._limits[pool] = count, self._world.time + for_s

    def room(self, pool: str, taken: int) -> int:
        count, until = self._limits.get(pool, (0, 0.0))
        return max(0, count - taken) if self._world.time < until else 1_000_000

    def end_shortages(self) -> None:
        self._limits.clear()


Sell = Callable[[str, RequestId | None, Offer], CloudMachine]
Refusal = Callable[[str, Offer], FailureKind | None]


class FaultyEc2:
    """A FaultyEc2 answers the calls of one region; what it makes and ends is in `machines`."""

    def __init__(
        self,
        world: World,
        faults: Faults,
        machines: Mapping[CloudId, CloudMachine],
        sell: Sell,
        refusal: Refusal,
    ) -> None:
        self._world, self._faults, self._machines = world, faults, machines
        self._sell, self._refusal = sell, refusal
        self.stock = StockOfPools(world)
        self.calls: dict[str, int] = {}
        self.stopped: dict[CloudId, CloudMachine] = {}  # not listed, and kept
        self.on_end: Callable[[CloudMachine, str], None] = lambda machine, how: None
        self.on_start: Callable[[CloudMachine, RequestId], None] = lambda machine, request: None
        self._answers: dict[str, tuple[str, dict[str, Any]]] = {}  # by client token: parameters, answer
        self._throttled_until = 0.0

    # -- the calls --------------------------------------------------------------------------------

    def create_fleet(self, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - as boto3's
        """Buys from the overrides in the order of their priority; a token seen before buys nothing."""
        self._begin("CreateFleet")
        token, given = str(parameters.pop("ClientToken")), repr(sorted(parameters.items()))
        known = self._answers.get(token)
        if known is not None and known[0] != given:
            raise Ec2Refusal(
                "IdempotentParameterMismatch", f"the token {token} was used with other parameters"
            )
        if known is None:
            self._refuse("launch_refused")
            self._answers[token] = known = given, self._filled(parameters)
        if self._faults.hit("launch_reply_lost"):
            raise TimeoutError("simulated: the answer of CreateFleet was lost")
        return known[1]

    def describe_instances(self, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
        """Returns the machines that this call knows by now, stopped ones included."""
        self._begin("DescribeInstances")
        alive = [m for m in self._machines.values() if m.is_listed(self._world.time)]
        shown = [_described(machine, _state(machine)) for machine in alive]
        shown += [_described(machine, "stopped") for machine in self.stopped.values()]
        return {"Reservations": [{"Instances": shown}]}

    def terminate_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Ends machines; one that is not known refuses the whole call."""
        for machine in self._known("TerminateInstances", InstanceIds):
            self.stopped.pop(machine.cloud_id, None)
            self.on_end(machine, "terminated")

    def stop_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Stops machines: they cost nothing but their disks, and can be started again."""
        for machine in self._known("StopInstances", InstanceIds):
            if machine.offer is not None and machine.offer.market == "spot":
                raise Ec2Refusal("UnsupportedOperation", f"{machine.cloud_id} is a spot instance")
            if machine.exists:
                self.on_end(machine, "stopped")
                self.stopped[machine.cloud_id] = machine

    def start_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Starts stopped machines, where there is room for them again; one that runs is left alone."""
        self._begin("StartInstances")
        for name in InstanceIds:
            machine = self.stopped.get(CloudId(name))
            if machine is None:
                continue
            if self._faults.hit("start_refused") or self._why_not(
                machine.node_type, machine.offer or Offer()
            ):
                raise Ec2Refusal(CODES[FailureKind.CAPACITY], f"no room to start {name}")
            del self.stopped[machine.cloud_id]
            self.on_start(machine, machine.request_id or RequestId(""))

    def create_tags(self, *, Resources: Sequence[str], Tags: Sequence[Mapping[str, str]]) -> None:
        """Tags stopped machines with the request that they are started for."""
        self._begin("CreateTags")
        for name in Resources:
            machine = self.stopped.get(CloudId(name))
            for tag in Tags if machine is not None else ():
                if tag["Key"] == TAG_REQUEST and machine is not None:
                    machine.request_id = RequestId(tag["Value"])

    # -- how --------------------------------------------------------------------------------------

    def _begin(self, operation: str) -> None:
        """Counts a call; most calls of a bad while are throttled, and a few break without an effect."""
        self.calls[operation] = self.calls.get(operation, 0) + 1
        now, faults = self._world.time, self._faults
        if faults.hit("throttled"):
            self._throttled_until = now + faults.between("throttled", 10, 60)
        is_throttled = now < self._throttled_until and not faults.stopped
        if is_throttled and faults.stream("throttled").random() < 0.7:
            raise Ec2Refusal(CODES[FailureKind.THROTTLED], f"{operation}: Request limit exceeded.")
        if faults.hit("call_breaks"):
            raise ConnectionError(f"simulated: {operation} broke")

    def _refuse(self, fault: str) -> None:
        if self._faults.hit(fault):
            raise Ec2Refusal(CODES[self._faults.stream(fault).choice(tuple(CODES))])

    def _known(self, operation: str, names: Sequence[str]) -> list[CloudMachine]:
        """Returns the machines; a call may not know a new one yet, and fails as a whole."""
        self._begin(operation)
        self._refuse("terminate_refused")
        unknown = [name for name in names if not self._is_known(CloudId(name))]
        if unknown:
            listed = ", ".join(unknown)
            raise Ec2Refusal("InvalidInstanceID.NotFound", f"The instance IDs '{listed}' do not exist")
        return [self._machines[CloudId(name)] for name in names]

    def _is_known(self, name: CloudId) -> bool:
        machine = self._machines.get(name)
        return machine is not None and self._world.time >= machine.listed_from

    def _filled(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        left = int(parameters["TargetCapacitySpecification"]["TotalTargetCapacity"])
        market = parameters["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        tags = {tag["Key"]: tag["Value"] for tag in parameters["TagSpecifications"][0]["Tags"]}
        overrides = parameters["LaunchTemplateConfigs"][0]["Overrides"]
        instances, errors = [], []
        for override in sorted(overrides, key=lambda one: one.get("Priority", 0.0)):
            offer = _offer_of(override, market)
            made, refused = self._made(tags, offer, left)
            left -= len(made)
            place = {"LaunchTemplateAndOverrides": {"Overrides": override}, "Lifecycle": market}
            if made:
                instances.append({**place, "InstanceIds": made})
            if refused is not None and not self._faults.hit("fleet_says_nothing"):
                error = {"ErrorCode": CODES[refused], "ErrorMessage": f"no machine in {offer.name}"}
                errors.append({**place, **error})
            if left <= 0:
                break
        return {"Instances": instances, "Errors": errors}

    def _made(
        self, tags: Mapping[str, str], offer: Offer, count: int
    ) -> tuple[list[str], FailureKind | None]:
        made: list[str] = []
        for _ in range(count):
            refused = self._why_not(tags[TAG_TYPE], offer)
            if refused is not None:
                return made, refused
            if not self._faults.hit("unit_dropped"):
                made.append(self._sell(tags[TAG_TYPE], RequestId(tags[TAG_REQUEST]), offer).cloud_id)
        return made, FailureKind.CAPACITY if len(made) < count else None

    def _why_not(self, node_type: str, offer: Offer) -> FailureKind | None:
        pool = health_key(node_type, offer.name)
        alive = (m for m in self._machines.values() if m.exists and m.node_type == node_type)
        taken = sum(m.offer is not None and m.offer.name == offer.name for m in alive)
        return self._refusal(node_type, offer) if self.stock.room(pool, taken) else FailureKind.CAPACITY


def _offer_of(override: Mapping[str, Any], market: str) -> Offer:
    return Offer(zone=str(override["SubnetId"]).removeprefix(SUBNET), market=market)


def _state(machine: CloudMachine) -> str:
    if not machine.exists:
        return "terminated"
    return "shutting-down" if machine.leaving else "running" if machine.up else "pending"


def _described(machine: CloudMachine, state: str) -> dict[str, Any]:
    offer = machine.offer or Offer()
    is_spot = {"InstanceLifecycle": "spot"} if offer.market == "spot" else {}
    tags = {TAG_REQUEST: machine.request_id, TAG_TYPE: machine.node_type, TAG_HASH: machine.launch_hash}
    tags |= {"ray-node-type": "head" if machine.kind is NodeKind.HEAD else "worker"}
    return {
        "InstanceId": machine.cloud_id,
        "InstanceType": f"sim.{machine.node_type}",
        "State": {"Name": state},
        "PrivateIpAddress": machine.ip,
        "Placement": {"AvailabilityZone": offer.zone},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items() if value],
        **is_spot,
    }
