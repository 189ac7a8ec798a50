"""FleetBuyer launches machines: one fleet of type `instant` per call, or RunInstances where it must.

Every call carries a token made from the request, so that a repeated call returns the machines of the first.
A fleet gets all targets of the request at once; what none of them has is refused with its reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import RequestId
from muster.cluster.model import FailureKind, LaunchFailure, Offer
from muster.errors import ProviderDenied, ProviderError, ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.errors import is_fresh_profile, kind_of_code, refusal_text
from muster.providers.aws.listing import Ec2Machine
from muster.providers.aws.machine_config import NO_CONFIG, TAGGED, MachineConfig, encoded, template_data
from muster.providers.aws.places import SOLD_OUT_S, PurchaseTarget, SoldOut
from muster.providers.aws.tags import TAG_MADE_BY, TAG_RUN, tagged
from muster.providers.aws.wire import OutcomeUnknown
from muster.providers.v1.failures import message_of

logger = logging.getLogger(__name__)

FRESH_PROFILE_S, FRESH_PROFILE_TRIES = 3.0, 10  # until a new instance profile is known everywhere
_FLEET_RIGHTS = ("CreateFleet", "CreateLaunchTemplate")
GONE_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")
# What the user must fix is reported before what passes by itself.
_GRAVEST_FIRST = (
    FailureKind.CONFIG,
    FailureKind.PERMISSION,
    FailureKind.QUOTA,
    FailureKind.UNKNOWN,
    FailureKind.THROTTLED,
    FailureKind.CAPACITY,
)


class FleetRequest(Struct, frozen=True, kw_only=True):
    """One call that launches machines of one node type: all that its token stands for."""

    request_id: RequestId
    node_type: str
    count: int
    tags: Mapping[str, str] = {}  # of the machines
    config: MachineConfig = NO_CONFIG
    offers: tuple[Offer, ...] = ()  # in the order of the planner; (): EC2 chooses
    part: int = 0  # of a launch with more machines than one call may have
    is_new: bool = False  # no earlier process can have made it
    is_fleet: bool = True  # False: by RunInstances
    settings: Mapping[str, Any] = {}  # of RunInstances, defaults included
    targets: tuple[PurchaseTarget, ...] = ()  # of one market, in the order of their rank
    token: str = ""
    pause_s: float = SOLD_OUT_S  # after a refusal for lack of capacity

    @property
    def market(self) -> str:
        return self.targets[0].market

    @property
    def is_ranked(self) -> bool:
        """Whether the planner has ranked the targets; otherwise EC2 chooses."""
        return len({one.rank for one in self.targets}) > 1

    def failure(
        self, kind: FailureKind, message: str, targets: Sequence[PurchaseTarget | None] = ()
    ) -> LaunchFailure:
        """Return one machine of the request that does not come, and the offers that the reason is about."""
        offers = tuple(dict.fromkeys(one.offer for one in targets if one is not None and one.offer))
        return LaunchFailure(
            request_id=self.request_id,
            node_type=self.node_type,
            kind=kind,
            message=message,
            offer=next(iter(offers), ""),
            also=offers[1:],
            pause_s=self.pause_s if kind is FailureKind.CAPACITY else None,
        )

    def failure_of(self, error: Exception) -> LaunchFailure:
        """Return the failure of one machine by an error that is about the whole call."""
        kind = FailureKind(error.kind) if isinstance(error, ProviderError) else FailureKind.UNKNOWN
        return replace(self.failure(kind, message_of(error)), pause_s=None)


# Machines by id, and a failure for each that is missing.
Launched = tuple[dict[str, Ec2Machine], list[LaunchFailure]]


def token_of(*parts: object) -> str:
    """Return a token for a call: at most 64 characters of ASCII."""
    text = json.dumps([str(part) for part in parts])
    return f"muster-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


class FleetBuyer:
    """Makes the calls of requests; launch templates are made when first needed."""

    def __init__(self, calls: AwsCalls, cluster_name: str, sold_out: SoldOut, clock: Clock) -> None:
        self._calls, self._cluster_name, self._sold_out, self._clock = calls, cluster_name, sold_out, clock
        self._templates: set[str] = set()
        self.has_fleets = True  # False once EC2 has denied the right to create them

    def buy(self, request: FleetRequest) -> Launched:
        """Make the call; one whose instance profile EC2 does not know yet is repeated.

        Raises what refuses the request as a whole.
        """
        for attempt in range(FRESH_PROFILE_TRIES):
            call = replace(request, token=token_of(request.token, attempt)) if attempt else request
            made, refusals = self._create_fleet(call) if call.is_fleet else self._run(call)
            if made or not any(is_fresh_profile(one.message) for one in refusals):
                break
            self._clock.sleep(FRESH_PROFILE_S)
        return made, units_refused(request, len(made), refusals)

    # -- fleets -----------------------------------------------------------------------------------

    def _create_fleet(self, request: FleetRequest, *, is_again: bool = False) -> Launched:
        """Return a refusal for each target that had too few, not for each machine."""
        parameters = _fleet_parameters(request, self._template(request), self._cluster_name)
        try:
            answer = self._calls.call("ec2", "create_fleet", parameters)
        except ProviderError as error:
            if code_of(error) in GONE_TEMPLATE and not is_again:
                self._templates.clear()
                return self._create_fleet(request, is_again=True)
            if isinstance(error, ProviderDenied) and any(f'"ec2:{n}"' in str(error) for n in _FLEET_RIGHTS):
                self.has_fleets = False
                logger.warning("cannot use fleets, so machines are launched zone by zone: %s", error)
            raise
        by_place = {(one.machine_type, one.subnet.subnet_id): one for one in request.targets}
        made: dict[str, Ec2Machine] = {}
        for entry in answer.get("Instances") or ():
            target = by_place.get(_place_key(entry, entry.get("InstanceType", "")))
            made |= {n: _new_machine(n, request, target) for n in entry.get("InstanceIds", ())}
        refusals = [
            self._refused(
                request,
                by_place.get(_place_key(entry, "")),
                entry.get("ErrorCode", ""),
                entry.get("ErrorMessage", ""),
            )
            for entry in answer.get("Errors") or ()
        ]
        return made, refusals

    def _template(self, request: FleetRequest) -> str:
        """Return the name of the template with these settings, made when it is not there."""
        data = template_data(request.config, request.settings, {TAG_MADE_BY: self._cluster_name})
        digest = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]
        name = f"muster-{self._cluster_name[:80]}-{digest}"
        if name not in self._templates:
            try:
                self._calls.ec2(
                    "create_launch_template",
                    LaunchTemplateName=name,
                    LaunchTemplateData=data,
                    TagSpecifications=[tagged("launch-template", {TAG_MADE_BY: self._cluster_name})],
                )
            except ProviderError as error:
                if "AlreadyExists" not in code_of(error):
                    raise
            self._templates.add(name)
        return name

    def _refused(
        self, request: FleetRequest, target: PurchaseTarget | None, code: str, message: str
    ) -> LaunchFailure:
        kind = kind_of_code(code, message)
        if target is not None and kind is FailureKind.CAPACITY:
            self._sold_out.note(target, code)
        return request.failure(kind, refusal_text(code, message, "ec2:CreateFleet"), [target])

    # -- RunInstances -----------------------------------------------------------------------------

    def _run(self, request: FleetRequest) -> Launched:
        """Launch target by target, in their order, until there is enough."""
        made: dict[str, Ec2Machine] = {}
        refusals: list[LaunchFailure] = []
        for number, target in enumerate(request.targets):
            missing = request.count - len(made)
            if missing <= 0:
                break
            try:
                answer = self._calls.call("ec2", "run_instances", _run_parameters(request, target, missing))
            except OutcomeUnknown as unclear:
                # What this process launched before is not missing: no list is compared with the rest.
                unclear.rest = replace(request, targets=request.targets[number:], count=missing, is_new=True)
                raise
            except ProviderError as error:
                code, text = code_of(error), str(error)
                is_passing = kind_of_code(code, text) is FailureKind.CAPACITY or is_fresh_profile(text)
                if not made and not is_passing:
                    raise
                refusals.append(self._refused(request, target, code, text.partition(": ")[2] or text))
                continue
            ids = [one["InstanceId"] for one in answer["Instances"]]
            made |= {n: _new_machine(n, request, target) for n in ids}
            if len(ids) < missing:
                text = f"{len(ids)} of {missing} machines were left"
                refusals.append(self._refused(request, target, "InsufficientInstanceCapacity", text))
        return made, refusals


def units_refused(request: FleetRequest, made: int, refusals: Sequence[LaunchFailure]) -> list[LaunchFailure]:
    """Return a failure for each machine that did not come: the gravest reason, and all offers it is about."""
    missing = request.count - made
    if missing <= 0:
        return []
    if not refusals:
        text = f"EC2 made {made} of {request.count} machines and gave no reason"
        return [request.failure(FailureKind.CAPACITY, text, request.targets)] * missing
    gravest = min(refusals, key=lambda one: _GRAVEST_FIRST.index(one.kind))
    offers = tuple(dict.fromkeys(one.offer for one in refusals if one.kind is gravest.kind and one.offer))
    return [replace(gravest, offer=next(iter(offers), ""), also=offers[1:])] * missing


def _new_machine(node_id: str, request: FleetRequest, target: PurchaseTarget | None) -> Ec2Machine:
    """Return a machine as EC2 will list it."""
    return Ec2Machine(
        node_id=node_id,
        tags={**request.config.tags.get("instance", {}), **request.tags},
        zone="" if target is None else target.subnet.zone,
        is_spot=target is not None and target.market == "spot",
        machine_type="" if target is None else target.machine_type,
    )


def _fleet_parameters(request: FleetRequest, template: str, cluster_name: str) -> dict[str, Any]:
    return {
        "Type": "instant",
        "ClientToken": request.token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                "Overrides": [_override(one, request) for one in request.targets],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": request.count,
            "DefaultTargetCapacityType": "spot" if request.market == "spot" else "on-demand",
        },
        "TagSpecifications": [
            tagged("fleet", {TAG_MADE_BY: cluster_name}),
            tagged("instance", request.tags),
        ],
        **_options(request),
    }


def _override(target: PurchaseTarget, request: FleetRequest) -> dict[str, Any]:
    made: dict[str, Any] = {"SubnetId": target.subnet.subnet_id}
    if target.machine_type:
        made["InstanceType"] = target.machine_type
    if request.is_ranked:
        made["Priority"] = float(target.rank)
    if target.market == "spot" and request.config.spot.get("MaxPrice"):
        made["MaxPrice"] = str(request.config.spot["MaxPrice"])
    return made


def _options(request: FleetRequest) -> dict[str, Any]:
    """Return how EC2 chooses among the targets: by our ranks where there are any."""
    if request.market == "spot":
        strategy = "capacity-optimized-prioritized" if request.is_ranked else "price-capacity-optimized"
        behavior = request.config.spot.get("InstanceInterruptionBehavior")
        more = {"InstanceInterruptionBehavior": behavior} if behavior else {}
        return {"SpotOptions": {"AllocationStrategy": strategy, **more}}
    return {"OnDemandOptions": {"AllocationStrategy": "prioritized" if request.is_ranked else "lowest-price"}}


def _place_key(entry: Mapping[str, Any], machine_type: str) -> tuple[str, str]:
    override = (entry.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    return override.get("InstanceType") or machine_type, override.get("SubnetId", "")


def _run_parameters(request: FleetRequest, target: PurchaseTarget, count: int) -> dict[str, Any]:
    settings = dict(request.settings)
    interfaces = settings.get("NetworkInterfaces")
    if interfaces:
        groups = settings.pop("SecurityGroupIds", None)
        settings["NetworkInterfaces"] = [_interface(one, target, groups) for one in interfaces]
    else:
        settings["SubnetId"] = target.subnet.subnet_id
    if target.machine_type:
        settings["InstanceType"] = target.machine_type
    if isinstance(settings.get("UserData"), bytes):
        settings["UserData"] = encoded(settings["UserData"])
    kinds = [kind for kind in TAGGED if kind != "spot-instances-request" or target.market == "spot"]
    own_tags, tags = request.config.tags, {**request.tags, TAG_RUN: "true"}
    return {
        **settings,
        **_market(request, target),
        "MinCount": 1,
        "MaxCount": count,
        "ClientToken": token_of(request.token, target.machine_type, target.subnet.subnet_id, count),
        "TagSpecifications": [tagged(kind, {**tags, **own_tags.get(kind, {})}) for kind in kinds],
    }


def _interface(
    given: Mapping[str, Any], target: PurchaseTarget, groups: Sequence[str] | None
) -> dict[str, Any]:
    """Interfaces have the subnet and the groups that a call with interfaces may not have itself."""
    more = {"Groups": list(groups)} if groups and "NetworkInterfaceId" not in given else {}
    subnet = {} if "NetworkInterfaceId" in given else {"SubnetId": target.subnet.subnet_id}
    return {**more, **subnet, **given}


def _market(request: FleetRequest, target: PurchaseTarget) -> dict[str, Any]:
    if target.market == "spot":
        options = {"SpotOptions": dict(request.config.spot)} if request.config.spot else {}
        return {"InstanceMarketOptions": {"MarketType": "spot", **options}}
    if request.config.market == "capacity-block":
        return {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
    return {}


def check_reserved(config: MachineConfig) -> None:
    """Raise ProviderMisconfigured for an offer of market `reserved` without a reservation."""
    if not config.reservation:
        raise ProviderMisconfigured(
            "an offer of market 'reserved' needs node_config.CapacityReservationSpecification with the id of"
            " a reservation, or a group of them, as CapacityReservationTarget"
        )
