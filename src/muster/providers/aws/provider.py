"""AwsProvider is the provider of type `aws`: machines are EC2 instances with the tags of their cluster.

The loop's thread never waits for EC2: launches, terminations and listings have separate threads. A launch is
idempotent by its request id: in this process by memory, across restarts by EC2's tokens and by tags.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, LaunchFailure, NodeKind, Offer, TerminateFailure
from muster.cluster.snapshot import ProviderTraits
from muster.config.to_spec import NodeLaunch
from muster.errors import ConfigError, ProviderError, ProviderMisconfigured
from muster.providers.aws.bootstrap import AwsBootstrap
from muster.providers.aws.calls import AwsCalls, code_of
from muster.providers.aws.errors import CLASSES
from muster.providers.aws.fleet import FleetRequest
from muster.providers.aws.launcher import MachineLauncher
from muster.providers.aws.listing import Ec2Machine, MachineList
from muster.providers.aws.machine_config import read_config
from muster.providers.aws.places import SOLD_OUT_S, SoldOut
from muster.providers.aws.tags import TAG_CLUSTER, TAG_PART, TagWriter
from muster.providers.aws.wire import OutcomeUnknown
from muster.providers.background_calls import (
    CallPools,
    InstanceLister,
    Requests,
    TerminationQueue,
    thread_pools,
)
from muster.providers.machines import Machine, ManagedProvider
from muster.providers.v1.tags import TAG_RAY_LAUNCH_REQUEST, offer_tags, worker_tags

logger = logging.getLogger(__name__)

MAX_FLEET = 250  # machines of one call that launches
MAX_TERMINATE = 500  # machines of one call that terminates
LAUNCH_THREADS = 4  # fleets at a time: one is requested for each offer
CLOSE_S = 5.0
_ID = re.compile(r"i-[0-9a-f]+")


@dataclass(frozen=True)
class AwsParts:
    """What tests and the simulator replace."""

    clock: Clock = field(default_factory=SystemClock)
    pools: CallPools | None = None  # None: threads
    calls: AwsCalls | None = None  # None: through boto3
    sold_out_s: float = SOLD_OUT_S


NO_PARTS = AwsParts()


class AwsProvider(ManagedProvider):
    """The EC2 instances of one cluster in one region."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        cluster_name: str,
        launches: Callable[[], Mapping[str, NodeLaunch]] = dict,
        parts: AwsParts = NO_PARTS,
        *,
        installs_runtime: bool = False,
        uses_docker: bool = False,
    ) -> None:
        """Make no call, and need no boto3 yet. Raises ConfigError for credentials in the file."""
        if settings.get("aws_credentials"):
            raise ConfigError(
                "is not used: secrets do not belong into a file that is copied to the head",
                path="provider.aws_credentials",
                fix=("use the environment, a profile (provider.profile) or an instance profile"),
            )
        self.settings, self.cluster_name, self.clock = settings, cluster_name, parts.clock
        self._node_launches, self._installs_runtime = launches, installs_runtime
        region, profile = str(settings.get("region") or ""), settings.get("profile")
        self.calls = parts.calls or AwsCalls(region, self.clock, profile)
        keeps_stopped = settings.get("cache_stopped_nodes") is True
        self.listing = MachineList(self.calls, cluster_name, self.clock, keeps_stopped=keeps_stopped)
        sold_out = SoldOut(self.clock, parts.sold_out_s)
        self.launcher = MachineLauncher(
            self.calls, settings, cluster_name, self.listing, sold_out, uses_docker=uses_docker
        )
        self._tag_writer = TagWriter(
            lambda ids, tags: self.calls.ec2("create_tags", Resources=list(ids), Tags=tags), self.clock.sleep
        )
        self._pools = parts.pools or thread_pools(LAUNCH_THREADS, self.clock)
        self._launches: Requests[LaunchFailure] = Requests()
        self._terminations = TerminationQueue(
            self.terminate_machines, self.listing.newest, self._pools.terminate, self.clock
        )
        self._lister = InstanceLister(self._list, self._pools.new_listing, self.clock)

    # -- the port of the loop ---------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits(
            installs_runtime=self._installs_runtime, buys_offers=True, takes_next_offer=True
        )

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        return self._lister.read()

    def _list(self) -> dict[CloudId, CloudInstance]:
        listed = self.listing.newest().values()
        instances = [one.to_instance(one.kind) for one in listed if one.kind is not None]
        return {instance.cloud_id: instance for instance in instances}

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        parts = [
            FleetRequest(
                request_id=request_id,
                node_type=node_type,
                count=min(MAX_FLEET, count - start),
                offers=tuple(offers),
                part=start // MAX_FLEET,
            )
            for node_type, count in shape.items()
            for start in range(0, count, MAX_FLEET)
        ]
        self._launches.start(request_id, [partial(self._launch, one) for one in parts], self._pools.launch)

    def _launch(self, request: FleetRequest) -> None:
        """Launch one part of a request, and note a failure for each machine that does not come."""
        try:
            _, failures = self.launcher.launch(self._with_config(request))
        except OutcomeUnknown as error:
            logger.warning("launch %s has no answer, and is repeated: %s", request.request_id, error)
            self._launches.repeat_later(request.request_id, partial(self._launch, request))
            return
        except Exception as error:  # noqa: BLE001 - comes back as failures
            failures = [request.failure_of(error)] * request.count
        self._launches.job_done(request.request_id, failures)

    def _with_config(self, request: FleetRequest) -> FleetRequest:
        launch = self._node_launches().get(request.node_type)
        if launch is None:
            raise ProviderMisconfigured(f"node type {request.node_type!r} is not in available_node_types")
        tags = worker_tags(self.cluster_name, launch.node_type, launch.launch_hash, request.request_id)
        if request.offers:
            tags |= offer_tags(request.offers[0].zone, request.offers[0].market)
        if request.part:
            tags[TAG_PART] = str(request.part)
        return self._tagged(request, tags, launch)

    def _tagged(self, request: FleetRequest, tags: Mapping[str, str], launch: NodeLaunch) -> FleetRequest:
        config = read_config(launch.node_config, self.launcher.launch_keys())
        return replace(request, tags={**tags, TAG_CLUSTER: self.cluster_name}, config=config)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._terminations.take(request_id, cloud_ids, MAX_TERMINATE)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launches.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminations.requests.poll()

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether the request is still being worked on, or has failures that were not polled."""
        return self._launches.is_open(request_id) or self._terminations.requests.is_open(request_id)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Take nothing more, and give calls under way a moment."""
        self._pools.launch.close(wait_s)
        self._pools.terminate.close(wait_s)
        self._lister.close()

    # -- the machines of the cluster, for commands ------------------------------------------------

    def machines(self, kind: NodeKind) -> list[Machine]:
        found = [one for one in self.listing.newest().values() if one.kind is kind]
        return [
            Machine(node_id=m.node_id, node_type=m.node_type, ip=self._address(m), tags=m.shown_tags())
            for m in found
        ]

    def create_head(self, request_id: str, launch: NodeLaunch, tags: Mapping[str, str]) -> None:
        self.create(request_id, launch, {**tags, TAG_RAY_LAUNCH_REQUEST: request_id})

    def create(
        self, request_id: str, launch: NodeLaunch, tags: Mapping[str, str], count: int = 1
    ) -> dict[str, Ec2Machine]:
        """Launch machines with these tags and wait. Raises ProviderError with EC2's reason if none comes."""
        request = FleetRequest(
            request_id=RequestId(request_id), node_type=launch.node_type, count=count, is_new=True
        )
        made, failures = self.launcher.launch(self._tagged(request, tags, launch))
        if not made:
            raise CLASSES[failures[0].kind](failures[0].message)
        return made

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        """Terminate machines; with the cache, stop on-demand ones. One that is gone is not an error.

        Raises ProviderError for a machine that is so new that EC2 does not know it yet: it will exist.
        """
        ids = [one for one in node_ids if _ID.fullmatch(one)]
        unknown = self._end(self.launcher.stopped.keep(ids) if self.launcher.stopped else ids)
        too_new = [one for one in unknown if self.listing.is_new(one)]
        self.listing.note_ended(one for one in ids if one not in too_new)
        if too_new:
            raise ProviderError(f"EC2 does not know {', '.join(too_new)} yet")

    def _end(self, node_ids: Sequence[str]) -> set[str]:
        """Return those that EC2 does not know."""
        left, unknown = list(node_ids), set[str]()
        while left:
            try:
                self.calls.ec2("terminate_instances", InstanceIds=left)
                break
            except ProviderError as error:
                is_gone = code_of(error) == "InvalidInstanceID.NotFound"
                gone = set(_ID.findall(str(error))) & set(left) if is_gone else set()
                if not gone:
                    raise
                unknown |= gone
                left = [one for one in left if one not in gone]
        return unknown

    def set_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        self._tag_writer.put(node_id, tags)
        self.listing.note_tags(node_id, tags)

    def _find(self, node_id: str) -> Ec2Machine | None:
        return self.listing.get(node_id) if _ID.fullmatch(node_id) else None

    def machine(self, node_id: str) -> Ec2Machine:
        """Return a machine of the cluster, dead or alive. Raises ValueError for an unknown one."""
        found = self._find(node_id)
        if found is None:
            raise ValueError(
                f"no instance {node_id!r} of cluster {self.cluster_name!r} in {self.calls.region}"
            )
        return found

    def tags(self, node_id: str) -> Mapping[str, str]:
        return self.machine(node_id).shown_tags()

    def internal_ip(self, node_id: str) -> str:
        return self.machine(node_id).internal_ip

    def address(self, node_id: str, *, is_inside: bool) -> str:
        return self.internal_ip(node_id) if is_inside else self._address(self.machine(node_id))

    def _address(self, machine: Ec2Machine) -> str:
        is_public = machine.kind is NodeKind.HEAD and self.settings.get("use_external_head_ip")
        is_inside = self.settings.get("use_internal_ips") and not is_public
        return machine.internal_ip if is_inside else machine.external_ip or machine.internal_ip

    def is_gone(self, node_id: str) -> bool:
        found = self._find(node_id)
        return found is None or not found.lives

    def answers(self, node_id: str) -> bool:
        found = self._find(node_id)
        return found is not None and found.state == "running"

    def clean_up(self) -> None:
        """Terminate machines that are kept stopped, and remove launch templates: the cluster is down."""
        if self.launcher.stopped:
            self.listing.refresh()
            self._end([one.node_id for one in self.listing.kept()])
        AwsBootstrap(self.calls, self.settings, self.cluster_name, self.clock).remove_templates()
