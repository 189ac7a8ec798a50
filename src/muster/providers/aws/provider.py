"""AwsNodeProvider is the provider of type `aws`: machines are EC2 instances with the tags of their cluster.

A v1 provider with muster's own create call: `create_node_batch` tries all offers of a launch in one fleet,
and can be repeated. The registry makes it; so does `muster provider check`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.ids import IdSource, RandomIds
from muster.cluster.model import Offer
from muster.errors import ConfigError, ProviderError, ProviderMisconfigured
from muster.providers.aws.bootstrap import AwsBootstrap
from muster.providers.aws.calls import AwsCalls, check_region, code_of
from muster.providers.aws.defaults import ClusterDefaults
from muster.providers.aws.fleet import (
    MachineBuyer,
    Order,
    all_sold_out,
    check_reserved,
    is_mismatch,
    token_of,
    units_refused,
)
from muster.providers.aws.listing import Ec2Machine, MachineList
from muster.providers.aws.machine_config import LaunchKeys, MachineConfig, read_config
from muster.providers.aws.places import Place, SoldOut, SubnetTable
from muster.providers.aws.stopped import StoppedMachines
from muster.providers.aws.tags import TAG_CLUSTER, TAG_PART, TagWriter
from muster.providers.node_provider import BatchRefused, NodeBatch, NodeProvider
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    TAG_RAY_LAUNCH_REQUEST,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
)

logger = logging.getLogger(__name__)

SECOND_LOOK_S = 2.0  # a list may be late: what it lacks is looked for once more
_ID = re.compile(r"i-[0-9a-f]+")


class AwsNodeProvider(NodeProvider):
    """An AwsNodeProvider manages the EC2 instances of one cluster in one region."""

    buys_offers = True
    max_launch_batch = 250  # machines of one fleet
    launch_threads = 4  # fleets at a time: one is asked for each offer

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        uses_docker: bool = False,
    ) -> None:
        """Makes no call, and needs no boto3 yet. Raises ConfigError for credentials in the file."""
        super().__init__(provider_config, cluster_name)
        if provider_config.get("aws_credentials"):
            raise ConfigError(
                "is not used: secrets do not belong into a file that is copied to the head; use the"
                " environment, a profile (provider.profile) or an instance profile",
                path="provider.aws_credentials",
            )
        self.clock, self._ids = clock or SystemClock(), ids or RandomIds()
        region = str(provider_config.get("region") or "")
        self.calls = AwsCalls(region, self.clock, provider_config.get("profile"))
        self._keeps_stopped = provider_config.get("cache_stopped_nodes") is True
        self.machines = MachineList(self.calls, cluster_name, self.clock, keeps_stopped=self._keeps_stopped)
        self.subnets = SubnetTable(
            self.calls,
            self.clock,
            zones=zones_of(provider_config),
            use_internal_ips=bool(provider_config.get("use_internal_ips") or provider_config.get("use_ssm")),
        )
        self.defaults = ClusterDefaults(self.calls, provider_config, cluster_name, uses_docker=uses_docker)
        self._sold_out = SoldOut(self.clock)
        self._buyer = MachineBuyer(self.calls, cluster_name, self._sold_out, self.clock)
        self._stopped = StoppedMachines(self.calls, self.machines)
        self._tag_writer = TagWriter(self._write_tags, self.clock.sleep)
        self._launch_keys: LaunchKeys | None = None

    # -- looking ----------------------------------------------------------------------------------

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        wanted = tag_filters.items()
        return [n for n, one in self.machines.newest().items() if wanted <= one.shown_tags().items()]

    def is_running(self, node_id: str) -> bool:
        found = self._find(node_id)
        return found is not None and found.state == "running"

    def is_terminated(self, node_id: str) -> bool:
        found = self._find(node_id)
        return found is None or not found.lives

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._known(node_id).shown_tags()

    def internal_ip(self, node_id: str) -> str | None:
        return self._known(node_id).internal_ip or None

    def external_ip(self, node_id: str) -> str | None:
        return self._known(node_id).external_ip or None

    def _find(self, node_id: str) -> Ec2Machine | None:
        return self.machines.get(node_id) if _ID.fullmatch(node_id) else None

    def _known(self, node_id: str) -> Ec2Machine:
        found = self._find(node_id)
        if found is None:
            raise ValueError(
                f"no instance {node_id!r} of cluster {self.cluster_name!r} in {self.calls.region}"
            )
        return found

    # -- buying -----------------------------------------------------------------------------------

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Buys machines; each call buys anew. Fewer than requested is no error, none at all is."""
        batch = NodeBatch(node_config=node_config, tags=tags, count=count)
        try:
            return self._bought(batch, self._ids.fresh("c"))
        except BatchRefused as refused:
            if not refused.made:
                raise refused.units[0] from None
            return {node_id: {} for node_id in refused.made}

    def create_node_batch(self, batch: NodeBatch) -> dict[str, Any]:
        """Buys machines for one part of a request; repeated for the same one, it buys nothing more.

        Raises BatchRefused with what was made and a reason for each that was not.
        """
        return self._bought(batch, "")

    def _bought(self, batch: NodeBatch, salt: str) -> dict[str, Any]:
        check_region(self.calls.region)
        own = {TAG_CLUSTER: self.cluster_name, **({TAG_PART: str(batch.part)} if batch.part else {})}
        tags = {**batch.tags, **own}
        config = read_config(batch.node_config, self.launch_keys())
        made: dict[str, Ec2Machine] = {}
        if self._keeps_stopped:
            first = batch.offers[0] if batch.offers else None
            made |= self._stopped.take(tags, batch.count, first)
        groups = self._groups(config, batch.offers)
        refused: list[ProviderError] = []
        for index, places in enumerate(groups):
            wanted = batch.count - len(made)
            if wanted <= 0:
                break
            request = tags.get(TAG_RAY_LAUNCH_REQUEST, ""), tags.get(TAG_RAY_USER_NODE_TYPE, "")
            token = token_of(self.cluster_name, *request, batch.part, salt, index)
            order = self._order(config, places, tags, wanted, token)
            try:
                found, refused = self._buy(order)
            except ProviderError as error:
                if not made:
                    raise
                found, refused = {}, [error] * wanted
            made |= found
        self.machines.note_made(made.values())
        if refused:
            raise BatchRefused(tuple(made), refused)
        return {node_id: {} for node_id in made}

    def _buy(self, order: Order) -> tuple[dict[str, Ec2Machine], list[ProviderError]]:
        """Returns what was made, and an error for each that was not."""
        usable = self._sold_out.usable(order.places)
        if not usable:
            return {}, [all_sold_out(order.places, self._sold_out)] * order.count
        order = replace(order, places=tuple(usable))
        try:
            done = self._buyer.buy(order)
        except ProviderError as error:
            if not is_mismatch(error):
                raise
            return self._buy_rest(order)
        return {n: _new_machine(n, order, place) for n, place in done.made.items()}, units_refused(
            order, done
        )

    def _buy_rest(self, order: Order) -> tuple[dict[str, Ec2Machine], list[ProviderError]]:
        """Buys what is missing of a request that was made before with other parameters: of another size, or
        with places that are sold out by now.
        """
        made = self.machines.of_request(order.tags)
        if len(made) < order.count:
            self.clock.sleep(SECOND_LOOK_S)
            made = self.machines.of_request(order.tags)
        missing = order.count - len(made)
        if missing <= 0:
            return made, []
        rest = replace(order, count=missing, token=token_of(order.token, *sorted(made)))
        try:
            done = self._buyer.buy(rest)
        except ProviderError as error:
            return made, [error] * missing
        more = {n: _new_machine(n, order, place) for n, place in done.made.items()}
        return {**made, **more}, units_refused(rest, done)

    def _groups(self, config: MachineConfig, offers: Sequence[Offer]) -> list[list[Place]]:
        """Returns the places of each market, in the order of the offers."""
        subnets = self.subnets.of(config.subnets)
        types = config.machine_types or ("",)
        if not offers:
            market = "reserved" if config.reservation else config.market
            return [[Place(machine_type=one, subnet=s, market=market) for s in subnets for one in types]]
        places = [
            Place(
                machine_type=one,
                subnet=subnet,
                market=offer.market,
                offer=offer.name,
                rank=number * len(types) + rank,
            )
            for number, offer in enumerate(offers)
            for rank, one in enumerate(types)
            for subnet in subnets
            if offer.zone in ("", subnet.zone)
        ]
        if not places:
            zones = ", ".join(dict.fromkeys(offer.zone for offer in offers))
            raise ProviderMisconfigured(
                f"there is no subnet in {zones}: give SubnetIds with one, or other offers"
            )
        return [list(group) for _, group in groupby(places, key=lambda one: one.market)]

    def _order(
        self, config: MachineConfig, places: Sequence[Place], tags: Mapping[str, str], count: int, token: str
    ) -> Order:
        settings = dict(config.settings)
        if places[0].market == "reserved":
            check_reserved(config)
        elif places[0].offer:  # bought as what it is, beside a reservation of the same type
            settings.pop("CapacityReservationSpecification", None)
        is_head = tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        complete = self.defaults.settings(
            replace(config, settings=settings), places[0].subnet.vpc, is_head=is_head
        )
        return Order(
            config=config,
            settings=complete,
            places=tuple(places),
            tags=tags,
            count=count,
            token=token,
            is_ranked=len({one.rank for one in places}) > 1,
        )

    def launch_keys(self) -> LaunchKeys:
        """Returns the keys of machines that this boto3 knows."""
        if self._launch_keys is None:
            template = self.calls.members_of("RequestLaunchTemplateData")
            self._launch_keys = LaunchKeys(self.calls.members_of("RunInstancesRequest"), template)
        return self._launch_keys

    # -- changing and ending ----------------------------------------------------------------------

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._tag_writer.put(node_id, tags)
        self.machines.note_tags(node_id, tags)

    def _write_tags(self, node_ids: Sequence[str], tags: list[dict[str, str]]) -> None:
        self.calls.ec2("create_tags", Resources=list(node_ids), Tags=tags)

    @property
    def max_terminate_nodes(self) -> int | None:
        return 500

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        return self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> dict[str, Any] | None:
        """Ends machines; with the cache, on-demand ones are stopped. One that is gone is no error."""
        ids = [one for one in node_ids if _ID.fullmatch(one)]
        self._end(self._stopped.keep(ids) if self._keeps_stopped else ids)
        self.machines.note_ended(ids)
        return None

    def _end(self, node_ids: Sequence[str]) -> None:
        left = list(node_ids)
        while left:
            try:
                self.calls.ec2("terminate_instances", InstanceIds=left)
                return
            except ProviderError as error:
                gone = (
                    set(_ID.findall(str(error))) if code_of(error) == "InvalidInstanceID.NotFound" else set()
                )
                if not gone & set(left):
                    raise
                left = [one for one in left if one not in gone]

    def cleanup_cluster_resources(self) -> None:
        """Ends machines that are kept stopped, and removes launch templates: a cluster is down."""
        if self._keeps_stopped:
            self.machines.refresh()
            self._end([one.node_id for one in self.machines.kept()])
        AwsBootstrap(self.calls, self.provider_config, self.cluster_name, self.clock).remove_templates()


def zones_of(provider_config: Mapping[str, Any]) -> list[str]:
    """Returns the zones of `provider.availability_zone`, which is a list with commas."""
    given = str(provider_config.get("availability_zone") or "")
    return [zone.strip() for zone in given.split(",") if zone.strip()]


def _new_machine(node_id: str, order: Order, place: Place | None) -> Ec2Machine:
    """Returns a machine as it will be listed."""
    return Ec2Machine(
        node_id=node_id,
        tags={**order.config.tags.get("instance", {}), **order.tags},
        zone="" if place is None else place.subnet.zone,
        is_spot=place is not None and place.market == "spot",
        machine_type="" if place is None else place.machine_type,
    )
