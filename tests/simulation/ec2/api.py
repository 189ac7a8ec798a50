"""Simulate EC2 at the wire: calls are answered and refused as AWS does, over the machines of a SimCloud.

Fleets of type instant with partial results and an error per override, client tokens, throttling, stock per
(type, zone, market), machines that new calls do not know yet, stopped machines that are started again. The
parameters and answers have the shape of boto3's; a simulated subnet is named after its zone, a machine type
after its node type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, FailureKind, NodeKind, Offer, health_key
from muster.providers.aws.wire import AwsRefusal, AwsWire, CallBroken
from muster.providers.v1 import tags as t
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.world import World

CLUSTER = "simulated"
ZONES = ("a", "b", "c")
SUBNET, TYPE = "subnet-", "sim."
CODES = {
    FailureKind.CAPACITY: "InsufficientInstanceCapacity",
    FailureKind.QUOTA: "VcpuLimitExceeded",
    FailureKind.PERMISSION: "UnauthorizedOperation",
    FailureKind.THROTTLED: "RequestLimitExceeded",
    FailureKind.CONFIG: "InvalidKeyPair.NotFound",
    FailureKind.UNKNOWN: "InternalError",
}
KEYS = frozenset(
    (
        "BlockDeviceMappings",
        "ImageId",
        "InstanceInitiatedShutdownBehavior",
        "InstanceMarketOptions",
        "InstanceType",
        "KeyName",
        "MetadataOptions",
        "SecurityGroupIds",
        "SubnetId",
        "TagSpecifications",
    )
)
FRESH_PROFILE = (
    "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
)
_KIND_TAGS = {NodeKind.HEAD: t.NODE_KIND_HEAD, NodeKind.WORKER: t.NODE_KIND_WORKER, NodeKind.UNMANAGED: "?"}


class CallClock(Clock):
    """The clock of the thread that calls: what it waits passes for it alone, not in the world."""

    def __init__(self, world: World) -> None:
        self._world, self._until = world, 0.0

    def now(self) -> float:
        return self._world.now() + self.monotonic() - self._world.time

    def monotonic(self) -> float:
        return max(self._world.time, self._until)

    def sleep(self, seconds: float) -> None:
        self._until = self.monotonic() + seconds


class StockOfPools:
    """How many machines of each (type, zone, market) can exist now."""

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


class Region(Protocol):
    """The world below the calls: its machines, what is listed of them, and what becomes of them."""

    machines: dict[CloudId, CloudMachine]

    def list_now(self) -> Mapping[CloudId, CloudInstance]: ...

    def refusal(self, node_type: str, offer: Offer | None) -> FailureKind | None: ...

    def sold(self, node_type: str, request_id: RequestId | None, offer: Offer) -> CloudMachine: ...

    def start_ending(self, cloud_id: CloudId) -> None: ...

    def stopped(self, machine: CloudMachine) -> None: ...

    def started(self, machine: CloudMachine, request_id: RequestId | None) -> None: ...


class FaultyEc2(AwsWire):
    """The wire to one simulated region."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, region: Region) -> None:
        self.crash_points, self.clock = crash_points, CallClock(world)
        self._world, self._faults, self._region = world, faults, region
        self.stock = StockOfPools(world)
        self.calls: Counter[str] = Counter()
        self.stopped: dict[CloudId, CloudMachine] = {}  # kept, and not running
        self.tags: dict[CloudId, dict[str, str]] = {}  # of machines that were launched by a call
        self.denies_fleets = False
        self.templates: dict[str, Mapping[str, Any]] = {}
        self._answers: dict[str, tuple[str, dict[str, Any]]] = {}  # by client token: parameters, answer
        self._broken_until: dict[str, float] = {}  # by fault and what it is about

    def members_of(self, shape: str) -> frozenset[str]:
        return KEYS

    @crash_point("ec2.send")
    def send(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Count a call; most calls of a bad while are throttled, and a few break without an effect."""
        self.calls[operation] += 1
        is_bad = self._is_broken("throttled", "", 10, 60) and self._faults.stream("throttled").random() < 0.7
        if is_bad:
            raise AwsRefusal(CODES[FailureKind.THROTTLED], "Request limit exceeded.", 503)
        if self._is_broken("call_breaks", operation, 0, 12):
            raise CallBroken(f"simulated: {operation} broke")
        answer: dict[str, Any] | None = getattr(self, operation)(**parameters)
        return answer or {}

    def _is_broken(self, fault: str, about: str, low: float, high: float) -> bool:
        """Return whether a fault lasts: once drawn, it stays for a while, by the clock of who calls."""
        now, key = self.clock.monotonic(), f"{fault} {about}"
        if not self._faults.stopped and now < self._broken_until.get(key, 0.0):
            return True
        if not self._faults.hit(fault):
            return False
        self._broken_until[key] = now + self._faults.between(fault, low, high)
        return True

    # -- what a launch looks up ---------------------------------------------------------------------

    def describe_vpcs(self, **parameters: Any) -> dict[str, Any]:
        return {"Vpcs": [{"VpcId": "vpc-1"}]}

    def describe_subnets(self, **parameters: Any) -> dict[str, Any]:
        """Return a subnet per zone, a page each."""
        zones = ZONES if "NextToken" not in parameters else ZONES[ZONES.index(parameters["NextToken"]) :]
        item = {"VpcId": "vpc-1", "AvailableIpAddressCount": 100, "MapPublicIpOnLaunch": True}
        subnet = {**item, "SubnetId": f"{SUBNET}{zones[0]}", "AvailabilityZone": zones[0]}
        return {"Subnets": [subnet], **({"NextToken": zones[1]} if len(zones) > 1 else {})}

    def describe_images(self, **parameters: Any) -> dict[str, Any]:
        disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}
        return {
            "Images": [{"ImageId": "ami-1", "RootDeviceName": "/dev/sda1", "BlockDeviceMappings": [disk]}]
        }

    def describe_instance_types(self, **parameters: Any) -> dict[str, Any]:
        return {"InstanceTypes": [{"InstanceType": name} for name in parameters.get("InstanceTypes", ())]}

    def describe_security_groups(self, **parameters: Any) -> dict[str, Any]:
        return {"SecurityGroups": [{"GroupId": "sg-1"}]}

    def describe_key_pairs(self, **parameters: Any) -> dict[str, Any]:
        return {"KeyPairs": [{"KeyName": "k"}]}

    def describe_volumes(self, *, VolumeIds: Sequence[str]) -> dict[str, Any]:
        return {"Volumes": [{"Size": 8} for _ in VolumeIds]}

    def describe_instances(
        self, *, Filters: Sequence[Mapping[str, Any]], **parameters: Any
    ) -> dict[str, Any]:
        """Return the machines that this call knows by now; it has the faults of all lists."""
        wanted = {one["Name"]: one["Values"] for one in Filters}
        assert wanted["tag:ray-cluster-name"] == [CLUSTER]
        if "instance-id" in wanted:
            known = [self._region.machines.get(CloudId(name)) for name in wanted["instance-id"]]
            found = [self._described(one) for one in known if one is not None]
            return {"Reservations": [{"Instances": found}]}
        if self._is_broken("list_fails", "", 0, 15):
            raise CallBroken("simulated: the list cannot be read")
        try:
            listed = self._region.list_now()
        except ConnectionError as error:
            raise CallBroken(str(error)) from error
        shown = [self._shown(name, one) for name, one in listed.items() if name not in self.stopped]
        shown += [self._described(machine) for machine in self.stopped.values()]
        states = wanted["instance-state-name"]
        return {"Reservations": [{"Instances": [one]} for one in shown if one["State"]["Name"] in states]}

    # -- launching ----------------------------------------------------------------------------------

    def create_launch_template(
        self, *, LaunchTemplateName: str, LaunchTemplateData: Mapping[str, Any], **parameters: Any
    ) -> None:
        if LaunchTemplateName in self.templates:
            raise AwsRefusal("InvalidLaunchTemplateName.AlreadyExistsException", "it exists")
        self.templates[LaunchTemplateName] = LaunchTemplateData

    def create_fleet(self, **parameters: Any) -> dict[str, Any]:
        """Launch from the overrides in the order of their priority."""
        if self.denies_fleets:
            raise AwsRefusal(
                "UnauthorizedOperation", "You are not authorized to perform this operation.", 403
            )
        (config,) = parameters["LaunchTemplateConfigs"]
        template = config["LaunchTemplateSpecification"]["LaunchTemplateName"]
        if self._faults.hit("template_gone"):
            self.templates.clear()
        if template not in self.templates:
            raise AwsRefusal("InvalidLaunchTemplateName.NotFoundException", f"there is no {template}")
        return self._answered(parameters, self._fill_fleet)

    def run_instances(self, **parameters: Any) -> dict[str, Any]:
        return self._answered(parameters, self._fill_run)

    def _answered(
        self, given: Mapping[str, Any], fill: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the answer of a launch; a token that was seen before launches nothing more."""
        if self._is_broken("launch_broken", "", 0, 15):
            raise CallBroken("simulated: the launch broke")
        parameters = dict(given)
        token, text = str(parameters.pop("ClientToken")), repr(sorted(parameters.items()))
        known = self._answers.get(token)
        if known is not None and known[0] != text:
            raise AwsRefusal("IdempotentParameterMismatch", f"{token} was used with other parameters")
        if known is None:
            self._refuse("launch_refused")
            self._answers[token] = known = text, fill(parameters)
        if self._is_broken("launch_reply_lost", token, 0, 15):
            raise CallBroken("simulated: the answer of the launch was lost")
        return known[1]

    def _fill_fleet(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        capacity = parameters["TargetCapacitySpecification"]
        left, market = int(capacity["TotalTargetCapacity"]), capacity["DefaultTargetCapacityType"]
        tags = _tags_of(parameters)
        instances: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        if self._faults.hit("launch_dropped"):
            return {"Instances": [], "Errors": []}
        is_fresh = self._is_broken("profile_unknown", "", 0, 40)
        overrides = parameters["LaunchTemplateConfigs"][0]["Overrides"]
        for override in sorted(overrides, key=lambda one: one.get("Priority", 0.0)):
            made, refused = ([], None) if is_fresh else self._made(tags, _offer_of(override, market), left)
            left -= len(made)
            place = {"LaunchTemplateAndOverrides": {"Overrides": override}, "Lifecycle": market}
            if made:
                instances.append({**place, "InstanceIds": made, "InstanceType": override["InstanceType"]})
            if is_fresh:
                errors.append({**place, "ErrorCode": "InvalidParameterValue", "ErrorMessage": FRESH_PROFILE})
            elif refused is not None and not self._faults.hit("fleet_says_nothing"):
                errors.append({**place, "ErrorCode": CODES[refused], "ErrorMessage": "no machine here"})
            if left <= 0:
                break
        return {"FleetId": "fleet-1", "Instances": instances, "Errors": errors}

    def _fill_run(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        market = parameters.get("InstanceMarketOptions", {}).get("MarketType", "on-demand")
        made, refused = self._made(
            _tags_of(parameters), _offer_of(parameters, market), parameters["MaxCount"]
        )
        if not made:
            raise AwsRefusal(CODES[refused or FailureKind.CAPACITY], "no machine here")
        return {"Instances": [{"InstanceId": name} for name in made]}

    def _made(
        self, tags: Mapping[str, str], offer: Offer, count: int
    ) -> tuple[list[str], FailureKind | None]:
        made: list[str] = []
        node_type = tags[t.TAG_RAY_USER_NODE_TYPE]
        for _ in range(count):
            refused = self._why_not(node_type, offer)
            if refused is not None:
                return made, refused
            if not self._faults.hit("unit_dropped"):
                request = t.request_of(tags.get(t.TAG_RAY_LAUNCH_REQUEST))
                machine = self._region.sold(node_type, request, offer)
                machine.launch_hash = tags.get(t.TAG_RAY_LAUNCH_CONFIG, "")
                self.tags[machine.cloud_id] = dict(tags)
                made.append(machine.cloud_id)
        return made, FailureKind.CAPACITY if len(made) < count else None

    def _why_not(self, node_type: str, offer: Offer) -> FailureKind | None:
        pool = health_key(node_type, offer.name)
        alive = (m for m in self._region.machines.values() if m.exists and m.node_type == node_type)
        taken = sum(m.offer is not None and m.offer.name == offer.name for m in alive)
        has_room = self.stock.room(pool, taken)
        return self._region.refusal(node_type, offer) if has_room else FailureKind.CAPACITY

    # -- changing machines --------------------------------------------------------------------------

    def terminate_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Terminate machines; one that is not known, or that is refused, refuses the whole call."""
        machines = self._known(InstanceIds)
        if machines and self._faults.hit("terminate_unit_refused"):
            raise AwsRefusal("OperationNotPermitted", f"{machines[0].cloud_id} may not be terminated now")
        for machine in machines:
            self.stopped.pop(machine.cloud_id, None)
            self._region.start_ending(machine.cloud_id)

    def stop_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Stop machines: they cost nothing but their disks, and can be started again."""
        for machine in self._known(InstanceIds):
            if self._is_spot(machine):
                raise AwsRefusal("UnsupportedOperation", f"{machine.cloud_id} is a spot instance")
            if machine.exists:
                self._region.stopped(machine)
                self.stopped[machine.cloud_id] = machine

    def start_instances(self, *, InstanceIds: Sequence[str]) -> None:
        """Start stopped machines, where there is room for them again; one that runs is left alone."""
        for name in InstanceIds:
            machine = self.stopped.get(CloudId(name))
            if machine is None:
                continue
            if self._faults.hit("start_refused") or self._why_not(
                machine.node_type, machine.offer or Offer()
            ):
                raise AwsRefusal(CODES[FailureKind.CAPACITY], f"no room to start {name}")
            del self.stopped[machine.cloud_id]
            self._region.started(machine, machine.request_id)

    def create_tags(self, *, Resources: Sequence[str], Tags: Sequence[Mapping[str, str]]) -> None:
        for machine in self._known(Resources):
            tags = self.tags.setdefault(machine.cloud_id, {})
            tags |= {tag["Key"]: tag["Value"] for tag in Tags}
            machine.request_id = t.request_of(tags.get(t.TAG_RAY_LAUNCH_REQUEST))

    def _refuse(self, fault: str) -> None:
        if self._faults.hit(fault):
            raise AwsRefusal(CODES[self._faults.stream(fault).choice(tuple(CODES))], "simulated")

    def _known(self, names: Sequence[str]) -> list[CloudMachine]:
        """Return the machines; a call may not know a new one yet, and fails as a whole."""
        self._refuse("terminate_refused")
        machines = [self._region.machines.get(CloudId(name)) for name in names]
        late = [m.cloud_id for m in machines if m is not None and self._world.time < m.listed_from]
        unknown = [name for name in names if CloudId(name) not in self._region.machines or name in late]
        if unknown:
            listed = ", ".join(unknown)
            raise AwsRefusal("InvalidInstanceID.NotFound", f"The instance IDs '{listed}' do not exist")
        return [machine for machine in machines if machine is not None]

    # -- how machines are described -----------------------------------------------------------------

    def _shown(self, cloud_id: CloudId, listed: CloudInstance) -> dict[str, Any]:
        machine = self._region.machines.get(cloud_id)
        if machine is not None:
            return self._described(machine)
        tags = {t.TAG_RAY_NODE_KIND: _KIND_TAGS[listed.kind], t.TAG_RAY_USER_NODE_TYPE: listed.node_type}
        return _item(f"i-f{cloud_id.rpartition('-')[2]}", "running", tags)

    def _described(self, machine: CloudMachine) -> dict[str, Any]:
        tags = self.tags.get(machine.cloud_id) or {
            t.TAG_RAY_NODE_KIND: _KIND_TAGS[machine.kind],
            t.TAG_RAY_USER_NODE_TYPE: machine.node_type,
            t.TAG_RAY_LAUNCH_CONFIG: machine.launch_hash,
        }
        if machine.listed_type is not None:
            tags = {**tags, t.TAG_RAY_USER_NODE_TYPE: machine.listed_type}
        item = _item(machine.cloud_id, self._state(machine), tags)
        item["PrivateIpAddress"] = machine.ip
        item["BlockDeviceMappings"] = [{"Ebs": {"VolumeId": f"vol-{machine.cloud_id}"}}]
        if machine.offer is not None:
            item["Placement"] = {"AvailabilityZone": machine.offer.zone}
        return {**item, **({"InstanceLifecycle": "spot"} if self._is_spot(machine) else {})}

    def _is_spot(self, machine: CloudMachine) -> bool:
        return machine.offer is not None and machine.offer.market == "spot"

    def _state(self, machine: CloudMachine) -> str:
        """Return the state that EC2 shows: a list may still have a machine that is gone."""
        if machine.cloud_id in self.stopped:
            return "stopped"
        if not machine.exists:
            return "running" if self._world.time < machine.listed_until else "terminated"
        return "shutting-down" if machine.leaving else "running" if machine.up else "pending"


def _tags_of(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of the machines that a call launches."""
    given = {one["ResourceType"]: one["Tags"] for one in parameters["TagSpecifications"]}
    return {tag["Key"]: tag["Value"] for tag in given["instance"]}


def _offer_of(override: Mapping[str, Any], market: str) -> Offer:
    return Offer(zone=str(override["SubnetId"]).removeprefix(SUBNET), market=market)


def _item(name: str, state: str, tags: Mapping[str, str]) -> dict[str, Any]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items() if value]
    return {"InstanceId": name, "InstanceType": "sim", "State": {"Name": state}, "Tags": listed}
