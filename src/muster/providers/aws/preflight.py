"""AccountCheck asks AWS whether a cluster could be started, before anything is made: each problem has a fix.

It only looks, and makes dry runs. What may not be asked is passed over: the launch itself will tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.errors import ConfigError, ProviderDenied, ProviderError
from muster.providers.aws.bootstrap import profile_name
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.defaults import ClusterDefaults
from muster.providers.aws.errors import DENIED
from muster.providers.aws.machine_config import LaunchKeys, MachineConfig, read_config
from muster.providers.aws.places import Subnet, SubnetTable
from muster.providers.aws.policy import EC2
from muster.providers.aws.tags import TAG_CLUSTER, TAG_MADE_BY, tagged
from muster.providers.aws.wire import CallBroken, check_region
from muster.providers.kind import Finding, known_size

# Of Service Quotas: the vCPUs that may run at once, by the first letter of the family.
_STANDARD = ("L-1216C47A", "L-34B43A08")  # on-demand, spot
_QUOTAS = {
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "x": ("L-7295265B", "L-E3A00192"),
}


class AccountFinding(Finding, frozen=True, kw_only=True):
    """One thing that is wrong with the account, the region or the file."""

    place: str = "AWS"


class CheckedType(Struct, frozen=True, kw_only=True):
    """A node type as the check needs it."""

    name: str
    node_config: Mapping[str, Any]
    least: int  # machines at first
    most: int
    zones: tuple[str, ...] = ()  # of its offers
    markets: tuple[str, ...] = ()
    cpus: float = 0.0  # that the planner counts on
    is_head: bool = False


class AccountCheck:
    """Looks at the types of one cluster."""

    def __init__(
        self, calls: AwsCalls, subnets: SubnetTable, defaults: ClusterDefaults, keys: LaunchKeys
    ) -> None:
        self._calls, self._subnets, self._defaults, self._keys = calls, subnets, defaults, keys
        self._roles: dict[str, list[str]] = {}  # node type -> roles of its instance profile

    def run(self, types: Sequence[CheckedType]) -> list[AccountFinding]:
        """Return everything that is wrong; without credentials nothing else is asked."""
        try:
            check_region(self._calls.region)
            self._calls.call("sts", "get_caller_identity", {})
        except ConfigError as error:
            return [
                AccountFinding(
                    problem=f"{error.path}: {error.message}", fix=error.fix or "edit the cluster file"
                )
            ]
        except ProviderError as error:
            return [_finding(error)]
        except CallBroken as error:
            return [
                AccountFinding(
                    problem=f"AWS cannot be reached ({error})", fix="check the network, and a proxy"
                )
            ]
        found: list[AccountFinding] = []
        for one in types:
            found += [_named(one.name, finding) for finding in self._of_type(one)]
        passed = self._tried(lambda: self._passed_roles(types))
        return list(dict.fromkeys([*found, *passed, *self._quotas(types)]))

    def _of_type(self, planned: CheckedType) -> Iterator[AccountFinding]:
        try:
            config = read_config(planned.node_config, self._keys)
            subnets = self._subnets.of(config.subnets)
        except ProviderError as error:
            yield _finding(error)
            return
        yield from self._addresses(planned, subnets)
        looks = (self._image, self._size, self._key, self._profile, self._offerings, self._reservation)
        for look in (*looks, self._dry_run):
            yield from self._tried(lambda look=look: look(config, planned, subnets))  # type: ignore[misc]

    def _tried(self, look: Callable[[], Iterator[AccountFinding]]) -> list[AccountFinding]:
        """What may not be looked at does not stop the launch; any other refusal does."""
        try:
            return list(look())
        except ProviderDenied as error:
            return [] if code_of(error) in DENIED else [_finding(error)]
        except ProviderError as error:
            return [_finding(error)]

    def _addresses(self, planned: CheckedType, subnets: Sequence[Subnet]) -> Iterator[AccountFinding]:
        zones = [zone for zone in planned.zones if zone and zone not in {one.zone for one in subnets}]
        if zones:
            yield AccountFinding(
                problem=f"there is no subnet in zone {', '.join(zones)} of its offers",
                fix="give SubnetIds with one there, or remove the offers",
            )
        free = sum(one.free for one in subnets)
        if free < planned.most:
            names = ", ".join(one.subnet_id for one in subnets[:4])
            yield AccountFinding(
                problem=f"subnets {names} have {free} free addresses for up to {planned.most} machines",
                fix="give more or larger subnets in SubnetIds",
                is_fatal=free < max(1, planned.least),
            )

    def _image(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        image = self._defaults.image_of(config)
        if not image.startswith("ami-"):
            return
        found = list(self._calls.pages("describe_images", "Images", ImageIds=[image]))
        if not found:
            yield AccountFinding(
                problem=f"image {image} is not in {self._calls.region}", fix="give an ImageId of this region"
            )
            return
        own = found[0].get("Architecture", "")
        for machine, processors in self._defaults.architectures(config.machine_types).items():
            if own and own not in processors:
                yield AccountFinding(
                    problem=f"image {image} is for {own}, but {machine} has {'/'.join(processors)}",
                    fix="give another ImageId or InstanceType",
                )

    def _size(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        """What AWS says about sizes is newer than our table; demand that does not fit waits forever."""
        for machine, cpus in self._defaults.sizes(config.machine_types).items():
            if planned.cpus > cpus:
                yield AccountFinding(
                    problem=f"it counts on {planned.cpus:g} CPUs, but {machine} has {cpus}",
                    fix="correct `resources`",
                    is_fatal=False,
                )

    def _key(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        name = config.settings.get("KeyName")
        filters = [{"Name": "key-name", "Values": [name]}]
        if name and not self._calls.ec2("describe_key_pairs", Filters=filters).get("KeyPairs"):
            yield AccountFinding(
                problem=f"key pair {name} is not in this account in {self._calls.region}",
                fix="give another KeyName, or leave it out and muster makes one",
            )

    def _profile(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        name = profile_name(config.settings)
        if name:
            found = self._calls.call("iam", "get_instance_profile", {"InstanceProfileName": name})
            self._roles[planned.name] = [one["Arn"] for one in found["InstanceProfile"].get("Roles", ())]
        yield from ()  # a profile that is not there is refused by its name

    def _passed_roles(self, types: Sequence[CheckedType]) -> Iterator[AccountFinding]:
        """A head with a role of the user's may pass no other role unless that role's policy says so."""
        heads = [role for one in types if one.is_head for role in self._roles.get(one.name, ())]
        workers = [one.name for one in types if heads and not one.is_head]
        context = {"ContextKeyName": "iam:PassedToService", "ContextKeyType": "string"}
        for name, role in [(one, role) for one in workers for role in self._roles.get(one, ())]:
            asked: dict[str, Any] = {"PolicySourceArn": heads[0], "ActionNames": ["iam:PassRole"]}
            asked |= {"ResourceArns": [role], "ContextEntries": [{**context, "ContextKeyValues": [EC2[0]]}]}
            answer = self._calls.call("iam", "simulate_principal_policy", asked)
            if any(one["EvalDecision"] != "allowed" for one in answer["EvaluationResults"]):
                problem = f"the head's role {heads[0]} may not pass {role}"
                fix = f"allow iam:PassRole for {role} in the policy of the head's role"
                yield _named(name, AccountFinding(problem=problem, fix=fix))

    def _offerings(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        """Types that no zone of the cluster has are a mistake; zones that lack one are left alone later."""
        for machine in config.machine_types:
            filters = [{"Name": "instance-type", "Values": [machine]}]
            found = self._calls.pages(
                "describe_instance_type_offerings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=filters,
            )
            zones = {one["Location"] for one in found}
            wanted = {one.zone for one in subnets if not planned.zones or one.zone in planned.zones}
            missing = sorted(wanted - zones)
            if missing and (planned.zones or not wanted & zones):
                yield AccountFinding(
                    problem=f"{machine} is not sold in {', '.join(missing)}",
                    fix=f"use {', '.join(sorted(zones)) or 'another region or type'}",
                    is_fatal=not wanted & zones,
                )

    def _reservation(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        target = (config.settings.get("CapacityReservationSpecification") or {}).get(
            "CapacityReservationTarget"
        ) or {}
        name = target.get("CapacityReservationId")
        if not name:
            return
        found = self._calls.ec2("describe_capacity_reservations", CapacityReservationIds=[name])
        for one in found.get("CapacityReservations", ()):
            end = f", it ends at {one['EndDate']}" if one.get("EndDate") else ""
            left = one.get("AvailableInstanceCount", 0)
            if one.get("State") != "active":
                yield AccountFinding(
                    problem=f"reservation {name} is {one.get('State')}", fix="give another one"
                )
            elif left < planned.most or end:
                text = f"reservation {name} has {left} machines left for up to {planned.most}{end}"
                yield AccountFinding(problem=text, fix="machines beyond it are refused", is_fatal=False)

    def _dry_run(
        self, config: MachineConfig, planned: CheckedType, subnets: Sequence[Subnet]
    ) -> Iterator[AccountFinding]:
        """Ask for the rights to buy; EC2 checks the parameters on the way."""
        for operation, parameters in self._asked(config, subnets):
            try:
                self._calls.ec2(operation, DryRun=True, **parameters)
            except ProviderError as error:
                code = code_of(error)
                if code in DENIED and operation in ("create_fleet", "create_launch_template"):
                    yield AccountFinding(
                        problem=str(error),
                        fix="machines are launched zone by zone without it",
                        is_fatal=False,
                    )
                elif code != "DryRunOperation" and not code.startswith("InvalidLaunchTemplate"):
                    yield _finding(error)

    def _asked(
        self, config: MachineConfig, subnets: Sequence[Subnet]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        settings = {
            key: value
            for key, value in config.settings.items()
            if key in ("ImageId", "KeyName", "SecurityGroupIds", "IamInstanceProfile", "LaunchTemplate")
        }
        image = self._defaults.image_of(config)
        settings |= {"ImageId": image} if image else {}
        machine = {"InstanceType": config.machine_types[0]} if config.machine_types else {}
        own, made = ({tag: self._defaults.cluster_name} for tag in (TAG_CLUSTER, TAG_MADE_BY))
        # Rights depend on tags.
        place = {"SubnetId": subnets[0].subnet_id, "TagSpecifications": [tagged("instance", own)]}
        yield "run_instances", {**settings, **machine, **place, "MinCount": 1, "MaxCount": 1}
        if config.needs_run:
            return
        yield (
            "create_launch_template",
            {
                "LaunchTemplateName": "muster-dry-run",
                "LaunchTemplateData": machine,
                "TagSpecifications": [tagged("launch-template", made)],
            },
        )
        template = {"LaunchTemplateName": "muster-dry-run", "Version": "$Latest"}
        yield (
            "create_fleet",
            {
                "Type": "instant",
                "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": template}],
                "TargetCapacitySpecification": {
                    "TotalTargetCapacity": 1,
                    "DefaultTargetCapacityType": "on-demand",
                },
                "TagSpecifications": [tagged("fleet", made), tagged("instance", own)],
            },
        )

    def _quotas(self, types: Sequence[CheckedType]) -> list[AccountFinding]:
        wanted: dict[str, tuple[int, int]] = {}  # quota -> vCPUs at first, and at most
        for planned in types:
            machine = str(planned.node_config.get("InstanceType") or "")
            size = known_size("aws", machine)
            if size is None:
                continue
            for market in planned.markets or ("on-demand",):
                code = _QUOTAS.get(machine[:1], _STANDARD)[int(market == "spot")]
                least, most = wanted.get(code, (0, 0))
                wanted[code] = least + planned.least * size.cpus, most + planned.most * size.cpus
        found = []
        for code, (least, most) in wanted.items():
            limit = self._quota(code)
            if limit is not None and limit < most:
                text = f"the quota {code} allows {limit:g} vCPUs, the file up to {most}"
                fix = "ask for more in Service Quotas (Amazon EC2), or lower max_workers"
                found.append(AccountFinding(problem=text, fix=fix, is_fatal=limit < max(1, least)))
        return found

    def _quota(self, code: str) -> float | None:
        """Return a limit of the account; None where it may not be asked."""
        try:
            answer = self._calls.call(
                "service-quotas", "get_service_quota", {"ServiceCode": "ec2", "QuotaCode": code}
            )
        except ProviderError:
            return None
        value = answer.get("Quota", {}).get("Value")
        return None if value is None else float(value)


def _finding(error: ProviderError) -> AccountFinding:
    text, _, fix = str(error).rpartition("; ")
    return AccountFinding(problem=text or str(error), fix=fix if text else "fix it, and try again")


def _named(name: str, finding: AccountFinding) -> AccountFinding:
    key = ("available_node_types", name, "node_config")
    return replace(finding, problem=f"node type {name}: {finding.problem}", key=key)
