"""MachineLauncher turns a fleet request into machines: stopped ones first, then those of a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from muster.cluster.model import FailureKind, LaunchFailure
from muster.errors import ProviderError, ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.defaults import ClusterDefaults
from muster.providers.aws.errors import MISMATCH
from muster.providers.aws.fleet import FleetBuyer, FleetRequest, Launched, check_reserved, token_of
from muster.providers.aws.listing import LATE_S, Ec2Machine, MachineList
from muster.providers.aws.machine_config import LaunchKeys
from muster.providers.aws.places import PurchaseTarget, SoldOut, SubnetTable
from muster.providers.aws.stopped import StoppedMachines
from muster.providers.aws.wire import CallBroken, OutcomeUnknown
from muster.providers.v1.failures import message_of
from muster.providers.v1.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND

SECOND_LOOK_S = 2.0  # a list may be late: what it lacks is looked for once more


class MachineLauncher:
    """Launches the machines of one cluster; threads share it."""

    def __init__(
        self,
        calls: AwsCalls,
        settings: Mapping[str, Any],
        cluster_name: str,
        listing: MachineList,
        sold_out: SoldOut,
        *,
        uses_docker: bool,
    ) -> None:
        self._calls, self._cluster_name = calls, cluster_name
        self._listing, self._sold_out = listing, sold_out
        self._clock = clock = sold_out.clock
        self.subnets = SubnetTable(
            calls,
            clock,
            zones=zones_of(settings),
            use_internal_ips=bool(settings.get("use_internal_ips") or settings.get("use_ssm")),
        )
        self.defaults = ClusterDefaults(calls, settings, cluster_name, uses_docker=uses_docker)
        keeps_stopped = settings.get("cache_stopped_nodes") is True
        self.stopped = StoppedMachines(calls, listing, clock) if keeps_stopped else None
        self._buyer = FleetBuyer(calls, cluster_name, sold_out, clock)
        self._launch_keys: LaunchKeys | None = None
        self._since = clock.monotonic()
        self._unclear: dict[str, FleetRequest] = {}  # calls without an answer, by token

    def launch_keys(self) -> LaunchKeys:
        """Return the keys of machines that this boto3 knows."""
        if self._launch_keys is None:
            template = self._calls.wire.members_of("RequestLaunchTemplateData")
            self._launch_keys = LaunchKeys(self._calls.wire.members_of("RunInstancesRequest"), template)
        return self._launch_keys

    def launch(self, request: FleetRequest) -> Launched:
        """Launch machines; repeated for the same request and part, it launches nothing more.

        Raises what refuses the request as a whole, and OutcomeUnknown for one that must be repeated.
        """
        token = token_of(self._cluster_name, request.request_id, request.node_type, request.part)
        unclear = self._unclear.get(token)
        made = {} if self.stopped is None or unclear else self.stopped.take(request)
        self._listing.note_made(made.values())
        more, failures = dict[str, Ec2Machine](), list[LaunchFailure]()
        if unclear or len(made) < request.count:
            rest = replace(request, count=request.count - len(made), token=token)
            call = unclear or self._completed(rest)
            try:
                # Only the token of a fleet is that of the request. An earlier process may have made calls in
                # single zones, whose tokens are others. With the cache, what lists show has been counted.
                is_listed = not call.is_new and self.stopped is None
                earlier = self._listed(call, is_fresh=False).values() if is_listed else ()
                if not all(one.is_of_fleet and call.is_fleet for one in earlier):
                    more, failures = self._buy_rest(call)
                else:
                    more, failures = (
                        self._buyer.buy(call) if call.targets else ({}, self._sold_out_units(rest))
                    )
            except OutcomeUnknown as error:
                self._unclear[token] = error.rest or call
                raise
            except ProviderError as error:
                if code_of(error) in MISMATCH:
                    more, failures = self._buy_rest(call)
                elif token in self._unclear:  # an earlier attempt may have launched machines
                    raise OutcomeUnknown(message_of(error)) from error
                elif call.is_fleet and not self._buyer.has_fleets:
                    return self.launch(request)  # zone by zone
                elif not made:
                    raise
                else:
                    failures = [call.failure_of(error)] * call.count
            self._unclear.pop(token, None)
            made |= more
            self._listing.note_made(more.values())
        return made, failures

    def _sold_out_units(self, request: FleetRequest) -> list[LaunchFailure]:
        targets = self._targets(request)
        wait_s = min(self._sold_out.left_s(one) for one in targets)
        names = ", ".join(dict.fromkeys(one.stock for one in targets))
        text = f"sold out a moment ago, tried again in {wait_s:.0f} s: {names}"
        failure = replace(request, pause_s=self._sold_out.pause_s).failure(
            FailureKind.CAPACITY, text, targets
        )
        return [failure] * request.count

    def _buy_rest(self, request: FleetRequest) -> Launched:
        """Launch what is missing of a request whose token was used before with other parameters: for another
        count, or with targets that are sold out by now.
        """
        made = self._listed(request)
        if len(made) < request.count:  # the list may be late
            self._clock.sleep(SECOND_LOOK_S)
            made = self._listed(request)
        missing = request.count - len(made)
        if missing <= 0:
            return made, []
        if self._clock.monotonic() - self._since <= LATE_S:
            raise OutcomeUnknown("an earlier process made this call, and lists may not show its machines yet")
        rest = replace(request, count=missing, token=token_of(request.token, *sorted(made)))
        try:
            more, failures = self._buyer.buy(rest)
        except ProviderError as error:
            return made, [rest.failure_of(error)] * missing
        return {**made, **more}, failures

    def _listed(self, call: FleetRequest, *, is_fresh: bool = True) -> dict[str, Ec2Machine]:
        """Return the machines that EC2 lists for a request; without a list nobody knows what came for it."""
        try:
            return self._listing.of_request(call.request_id, call.node_type, call.part, is_fresh=is_fresh)
        except (ProviderError, CallBroken) as error:
            raise OutcomeUnknown(message_of(error)) from error

    def _targets(self, request: FleetRequest) -> list[PurchaseTarget]:
        """Return the targets of the first offer's market, in the order of the offers."""
        config, offers = request.config, request.offers
        subnets, types = self.subnets.of(config.subnets), config.machine_types or ("",)
        if not offers:
            market = "reserved" if config.reservation else config.market
            return [PurchaseTarget(machine_type=t, subnet=s, market=market) for s in subnets for t in types]
        targets = [
            PurchaseTarget(
                machine_type=name,
                subnet=subnet,
                market=offer.market,
                offer=offer.name,
                rank=number * len(types) + rank,
            )
            for number, offer in enumerate(offers)
            for rank, name in enumerate(types)
            for subnet in subnets
            if offer.zone in ("", subnet.zone) and offer.market == offers[0].market
        ]
        if not targets:
            zones = ", ".join(dict.fromkeys(offer.zone for offer in offers))
            raise ProviderMisconfigured(
                f"there is no subnet in {zones}: give SubnetIds with one, or other offers"
            )
        return targets

    def _completed(self, request: FleetRequest) -> FleetRequest:
        """Return the call with all that the user has left out, and the targets that are not sold out."""
        config, settings = request.config, dict(request.config.settings)
        targets = self._targets(request)
        if targets[0].market == "reserved":
            check_reserved(config)
        elif targets[0].offer:  # launched as what it is, beside a reservation of the same type
            settings.pop("CapacityReservationSpecification", None)
        is_head = request.tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        vpc = targets[0].subnet.vpc
        return replace(
            request,
            settings=self.defaults.settings(replace(config, settings=settings), vpc, is_head=is_head),
            targets=tuple(self._sold_out.usable(targets)),
            pause_s=self._sold_out.pause_s,
            is_fleet=self._buyer.has_fleets and not config.needs_run and targets[0].market != "reserved",
        )


def zones_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the zones of `provider.availability_zone`, which is a list with commas."""
    given = str(settings.get("availability_zone") or "")
    return [zone.strip() for zone in given.split(",") if zone.strip()]
