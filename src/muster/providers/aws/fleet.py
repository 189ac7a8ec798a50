"""MachineBuyer buys machines: one fleet of type `instant` per call, or RunInstances where that cannot do it.

Every call carries a token made from the request, so that a repeated call returns the machines of the first.
A fleet is offered all places of the request at once; what none of them has is refused with its reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.cluster.model import FailureKind
from muster.errors import CapacityExhausted, ProviderDenied, ProviderError, ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.errors import CLASSES, MISMATCH, is_fresh_profile, kind_of_code, refusal_text
from muster.providers.aws.machine_config import TAGGED, MachineConfig, encoded, template_data
from muster.providers.aws.places import SOLD_OUT_S, Place, SoldOut
from muster.providers.aws.tags import TAG_MADE_BY, tagged

logger = logging.getLogger(__name__)

FRESH_PROFILE_S, FRESH_PROFILE_TRIES = 3.0, 10  # until a new instance profile is known everywhere
GONE_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")


class Order(Struct, frozen=True, kw_only=True):
    """An Order is one call to buy: all that a token stands for."""

    config: MachineConfig
    settings: Mapping[str, Any]  # of RunInstances, defaults included
    places: tuple[Place, ...]  # of one market, in the order of their rank
    tags: Mapping[str, str]  # of the machines
    count: int
    token: str
    is_ranked: bool  # the planner has ranked the places; otherwise EC2 chooses


@dataclass
class Bought:
    """A Bought is what became of an order."""

    made: dict[str, Place | None] = field(default_factory=dict)
    refusals: list[tuple[Place | None, str, str]] = field(default_factory=list)  # place, code, message


def token_of(*parts: object) -> str:
    """Returns a token for a call: at most 64 characters of ASCII."""
    text = json.dumps([str(part) for part in parts])
    return f"muster-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


class MachineBuyer:
    """A MachineBuyer makes the calls of orders; launch templates are made when first needed."""

    def __init__(self, calls: AwsCalls, cluster_name: str, sold_out: SoldOut, clock: Clock) -> None:
        self._calls, self._cluster_name, self._sold_out, self._clock = calls, cluster_name, sold_out, clock
        self._templates: set[str] = set()
        self._no_fleets = ""  # why fleets cannot be used; "": they can

    def buy(self, order: Order) -> Bought:
        """Makes the call; raises what refuses the order as a whole."""
        uses_fleet = (
            not order.config.needs_run and not self._no_fleets and order.places[0].market != "reserved"
        )
        if uses_fleet:
            try:
                return self._with_profile(order, self._fleet)
            except ProviderDenied as denied:
                if not _is_about(denied, ("ec2:CreateFleet", "ec2:CreateLaunchTemplate")):
                    raise
                self._no_fleets = str(denied)
                logger.warning("fleets cannot be used, so machines are bought zone by zone: %s", denied)
        return self._with_profile(order, self._run)

    def _with_profile(self, order: Order, buy: Any) -> Bought:  # noqa: ANN401 - one of the two ways
        """Repeats an order whose instance profile was made a moment ago; EC2 gets to know it late."""
        for attempt in range(FRESH_PROFILE_TRIES):
            token = order.token if not attempt else token_of(order.token, attempt)
            done: Bought = buy(replace(order, token=token))
            is_fresh = any(is_fresh_profile(code, text) for _, code, text in done.refusals)
            if done.made or not is_fresh or attempt == FRESH_PROFILE_TRIES - 1:
                return done
            self._clock.sleep(FRESH_PROFILE_S)
        raise AssertionError("a loop that returns")

    # -- fleets -----------------------------------------------------------------------------------

    def _fleet(self, order: Order) -> Bought:
        template = self._template(order)
        try:
            return self._create_fleet(order, template)
        except ProviderError as error:
            if code_of(error) not in GONE_TEMPLATE:
                raise
        self._templates.discard(template)
        return self._create_fleet(order, self._template(order))

    def _template(self, order: Order) -> str:
        """Returns the name of the template with these settings, made when it is not there."""
        data = template_data(order.config, order.settings, {TAG_MADE_BY: self._cluster_name})
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

    def _create_fleet(self, order: Order, template: str) -> Bought:
        market = order.places[0].market
        by_place = {(one.machine_type, one.subnet.subnet_id): one for one in order.places}
        answer = self._calls.ec2(
            "create_fleet",
            Type="instant",
            ClientToken=order.token,
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                    "Overrides": [_override(one, order) for one in order.places],
                }
            ],
            TargetCapacitySpecification={
                "TotalTargetCapacity": order.count,
                "DefaultTargetCapacityType": "spot" if market == "spot" else "on-demand",
            },
            TagSpecifications=[
                tagged("fleet", {TAG_MADE_BY: self._cluster_name}),
                tagged("instance", order.tags),
            ],
            **_options(order, market),
        )
        done = Bought()
        for entry in answer.get("Instances") or ():
            place = by_place.get(_place_key(entry, entry.get("InstanceType", "")))
            done.made.update(dict.fromkeys(entry.get("InstanceIds", ()), place))
        for entry in answer.get("Errors") or ():
            place = by_place.get(_place_key(entry, ""))
            self._note(done, place, entry.get("ErrorCode", ""), entry.get("ErrorMessage", ""))
        return done

    def _note(self, done: Bought, place: Place | None, code: str, message: str) -> None:
        done.refusals.append((place, code, message))
        if place is not None and kind_of_code(code, message) is FailureKind.CAPACITY:
            self._sold_out.note(place, code)

    # -- RunInstances -----------------------------------------------------------------------------

    def _run(self, order: Order) -> Bought:
        """Buys place by place, in their order, until there is enough."""
        done = Bought()
        for place in order.places:
            wanted = order.count - len(done.made)
            if wanted <= 0:
                break
            try:
                self._run_in(order, place, wanted, done)
            except ProviderError as error:
                code = code_of(error)
                kind = kind_of_code(code, str(error))
                if (
                    not done.made
                    and kind is not FailureKind.CAPACITY
                    and not is_fresh_profile(code, str(error))
                ):
                    raise
                self._note(done, place, code, str(error).partition(": ")[2] or str(error))
        return done

    def _run_in(self, order: Order, place: Place, count: int, done: Bought) -> None:
        settings = dict(order.settings)
        interfaces = settings.get("NetworkInterfaces")
        if interfaces:
            groups = settings.pop("SecurityGroupIds", None)
            settings["NetworkInterfaces"] = [_interface(one, place, groups) for one in interfaces]
        else:
            settings["SubnetId"] = place.subnet.subnet_id
        if place.machine_type:
            settings["InstanceType"] = place.machine_type
        if isinstance(settings.get("UserData"), bytes):
            settings["UserData"] = encoded(settings["UserData"])
        tags = {kind: order.config.tags.get(kind, {}) for kind in TAGGED}
        kinds = [kind for kind in TAGGED if kind != "spot-instances-request" or place.market == "spot"]
        answer = self._calls.ec2(
            "run_instances",
            **settings,
            **_market(order, place),
            MinCount=1,
            MaxCount=count,
            ClientToken=token_of(order.token, place.machine_type, place.subnet.subnet_id, count),
            TagSpecifications=[tagged(kind, {**order.tags, **tags[kind]}) for kind in kinds],
        )
        made = [one["InstanceId"] for one in answer["Instances"]]
        done.made.update(dict.fromkeys(made, place))
        if len(made) < count:
            text = f"{len(made)} of {count} machines were left"
            self._note(done, place, "InsufficientInstanceCapacity", text)


def units_refused(order: Order, done: Bought) -> list[ProviderError]:
    """Returns an error for each machine that did not come: the gravest reason, and all offers it is about."""
    missing = order.count - len(done.made)
    if missing <= 0:
        return []
    if not done.refusals:
        text = f"EC2 made {len(done.made)} of {order.count} machines and gave no reason"
        offers = tuple(dict.fromkeys(one.offer for one in order.places if one.offer))
        return [_unit(FailureKind.CAPACITY, text, offers)] * missing
    kinds = [kind_of_code(code, message) for _, code, message in done.refusals]
    # What the user must mend is said before what mends itself.
    order_of = (
        FailureKind.CONFIG,
        FailureKind.PERMISSION,
        FailureKind.QUOTA,
        FailureKind.UNKNOWN,
        FailureKind.THROTTLED,
        FailureKind.CAPACITY,
    )
    kind = min(kinds, key=order_of.index)
    _, code, message = done.refusals[kinds.index(kind)]
    offers = tuple(
        dict.fromkeys(
            place.offer
            for (place, _, _), each in zip(done.refusals, kinds, strict=True)
            if each is kind and place is not None and place.offer
        )
    )
    return [_unit(kind, refusal_text(code, message, "ec2:CreateFleet"), offers)] * missing


def _unit(kind: FailureKind, text: str, offers: Sequence[str]) -> ProviderError:
    made = CLASSES[kind](text)
    made.offers = tuple(offers)
    made.pause_s = SOLD_OUT_S if kind is FailureKind.CAPACITY else None
    return made


def all_sold_out(places: Iterable[Place], sold_out: SoldOut) -> ProviderError:
    """Returns the refusal of an order that is not made, because EC2 had nothing a moment ago."""
    listed = list(places)
    wait_s = min((sold_out.left_s(one) for one in listed), default=0.0)
    names = ", ".join(dict.fromkeys(one.stock for one in listed))
    error = CapacityExhausted(f"sold out a moment ago, tried again in {wait_s:.0f} s: {names}")
    error.offers = tuple(dict.fromkeys(one.offer for one in listed if one.offer))
    error.pause_s = SOLD_OUT_S
    return error


def is_mismatch(error: BaseException) -> bool:
    """Returns whether the token of a call was used before, with other parameters."""
    return code_of(error) in MISMATCH


def _is_about(denied: ProviderDenied, actions: Sequence[str]) -> bool:
    return any(f'"{action}"' in str(denied) for action in actions)


def _override(place: Place, order: Order) -> dict[str, Any]:
    made: dict[str, Any] = {"SubnetId": place.subnet.subnet_id}
    if place.machine_type:
        made["InstanceType"] = place.machine_type
    if order.is_ranked:
        made["Priority"] = float(place.rank)
    if place.market == "spot" and order.config.spot.get("MaxPrice"):
        made["MaxPrice"] = str(order.config.spot["MaxPrice"])
    return made


def _options(order: Order, market: str) -> dict[str, Any]:
    """Returns how EC2 chooses among the places: by our ranks where there are any."""
    if market == "spot":
        strategy = "capacity-optimized-prioritized" if order.is_ranked else "price-capacity-optimized"
        behavior = order.config.spot.get("InstanceInterruptionBehavior")
        more = {"InstanceInterruptionBehavior": behavior} if behavior else {}
        return {"SpotOptions": {"AllocationStrategy": strategy, **more}}
    return {"OnDemandOptions": {"AllocationStrategy": "prioritized" if order.is_ranked else "lowest-price"}}


def _place_key(entry: Mapping[str, Any], machine_type: str) -> tuple[str, str]:
    override = (entry.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    return override.get("InstanceType") or machine_type, override.get("SubnetId", "")


def _interface(given: Mapping[str, Any], place: Place, groups: Sequence[str] | None) -> dict[str, Any]:
    """Interfaces have the subnet and the groups that a call with interfaces may not have itself."""
    more = {"Groups": list(groups)} if groups and "NetworkInterfaceId" not in given else {}
    subnet = {} if "NetworkInterfaceId" in given else {"SubnetId": place.subnet.subnet_id}
    return {**more, **subnet, **given}


def _market(order: Order, place: Place) -> dict[str, Any]:
    if place.market == "spot":
        options = {"SpotOptions": dict(order.config.spot)} if order.config.spot else {}
        return {"InstanceMarketOptions": {"MarketType": "spot", **options}}
    if order.config.market == "capacity-block":
        return {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
    return {}


def check_reserved(config: MachineConfig) -> None:
    """Raises ProviderMisconfigured for an offer of market `reserved` without a reservation."""
    if not config.reservation:
        raise ProviderMisconfigured(
            "an offer of market 'reserved' needs node_config.CapacityReservationSpecification with the id of"
            " a reservation, or a group of them, as CapacityReservationTarget"
        )
