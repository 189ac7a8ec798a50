"""StoppedMachines keeps on-demand machines stopped in place of ending them, and starts them again.

With `provider.cache_stopped_nodes: true`. A stopped machine costs its disk only; it is used again for the
same node type with the same config, in the zone that is wanted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.errors import ProviderError
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.fleet import FleetRequest
from muster.providers.aws.listing import LATE_S, Ec2Machine, MachineList
from muster.providers.aws.tags import to_aws
from muster.providers.aws.wire import OutcomeUnknown
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

logger = logging.getLogger(__name__)

GIB_MONTH = 0.08  # $ for a GiB of gp3 in most regions; others are dearer
HOURS_PER_MONTH = 730.0
_SAME = (TAG_RAY_USER_NODE_TYPE, TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_KIND)


def disk_price_per_month(gib: int) -> float:
    """Return what the disks of a stopped machine cost."""
    return gib * GIB_MONTH


class StoppedMachines:
    """Stops and starts the machines of one cluster; threads share it."""

    def __init__(self, calls: AwsCalls, machines: MachineList, clock: Clock) -> None:
        self._calls, self._list, self._clock = calls, machines, clock
        self._since = clock.monotonic()
        self._lock = threading.Lock()
        # id -> when this process did it: a list may not show it for a while.
        self._started: dict[str, float] = {}
        self._stopped: dict[str, float] = {}

    def keep(self, node_ids: Sequence[str]) -> list[str]:
        """Stop the on-demand machines among these; return those that are to be terminated.

        The core asks for the end of a machine again when a list lacks it; one that is kept stays kept.
        """
        oldest = self._clock.monotonic() - LATE_S
        with self._lock:
            recent = {node_id for node_id, at in self._stopped.items() if at >= oldest}
        found = {node_id: self._list.get(node_id) for node_id in node_ids if node_id not in recent}
        to_stop = [one for one in found.values() if one is not None and one.lives and not one.is_spot]
        if to_stop:
            self._stop(to_stop)
        kept = {one.node_id for one in (*to_stop, *self._list.kept())}
        return [node_id for node_id in found if node_id not in kept]

    def _stop(self, machines: Sequence[Ec2Machine]) -> None:
        """Stop machines; log what their disks cost."""
        ids = [one.node_id for one in machines]
        self._calls.ec2("stop_instances", InstanceIds=ids)
        with self._lock:
            self._stopped |= dict.fromkeys(ids, self._clock.monotonic())
            for node_id in ids:
                self._started.pop(node_id, None)
        gib = self._disk_gib(machines)
        price = f"their {gib} GiB of disk cost about ${disk_price_per_month(gib):.2f} per month"
        logger.info("stopped %s; %s until `muster down`", ", ".join(ids), price)

    def take(self, request: FleetRequest) -> dict[str, Ec2Machine]:
        """Return machines for a request: those that an earlier attempt has started already, and more."""
        mine = self._list.of_request(request.request_id, request.node_type, request.part)
        missing = request.count - len(mine)
        return mine if missing <= 0 else {**mine, **self._start(request, missing)}

    def _start(self, request: FleetRequest, count: int) -> dict[str, Ec2Machine]:
        """Start up to `count` stopped machines as new ones with the request's tags; return those that start.

        Tags come first: a machine that was tagged and not started is found and started by the next attempt.
        """
        chosen = {one.node_id: one for one in self._choose(request, count)}
        if not chosen:
            return {}
        try:
            self._calls.ec2("create_tags", Resources=list(chosen), Tags=to_aws(request.tags))
        except ProviderError as error:
            logger.warning("could not tag stopped machines, so new ones are launched: %s", error)
            return {}
        tags = {n: {**chosen[n].tags, **request.tags} for n in self._start_these(list(chosen))}
        return {n: replace(chosen[n], state="pending", tags=tags[n]) for n in tags}

    def _start_these(self, node_ids: Sequence[str]) -> list[str]:
        """Return those that start; a call that is refused may have started some, so each is tried alone."""
        try:
            self._calls.ec2("start_instances", InstanceIds=list(node_ids))
        except ProviderError as error:  # sold out, mostly: then new ones are launched
            if len(node_ids) > 1:
                return [started for one in node_ids for started in self._start_these([one])]
            logger.warning("could not start a stopped machine: %s", error)
            return []
        except OutcomeUnknown:  # the launch is repeated, and starts the same machines
            with self._lock:
                self._started = {n: at for n, at in self._started.items() if n not in node_ids}
            raise
        return list(node_ids)

    def _choose(self, request: FleetRequest, count: int) -> list[Ec2Machine]:
        offer = request.offers[0] if request.offers else None
        now = self._clock.monotonic()
        # An earlier process may have launched machines for the request that no list shows yet.
        is_repeated = not request.is_new and now - self._since <= LATE_S
        if is_repeated or (offer is not None and offer.market != "on-demand"):
            return []
        wanted = {key: request.tags.get(key) for key in _SAME}
        with self._lock:
            self._started = {n: at for n, at in self._started.items() if now - at <= LATE_S}
            fitting = [
                one
                for one in self._list.stopped()
                if one.node_id not in self._started
                and not one.is_spot
                and all(one.tags.get(key) == value for key, value in wanted.items())
                and (offer is None or not offer.zone or one.zone == offer.zone)
            ]
            fitting.sort(key=lambda one: one.request_id != request.request_id)  # tagged by an earlier attempt
            self._started |= {one.node_id: now for one in fitting[:count]}
            for one in fitting[:count]:
                self._stopped.pop(one.node_id, None)
        return fitting[:count]

    def _disk_gib(self, machines: Sequence[Ec2Machine]) -> int:
        volumes = [volume for one in machines for volume in one.volumes]
        if not volumes:
            return 0
        try:
            found = list(self._calls.pages("describe_volumes", "Volumes", VolumeIds=volumes))
        except ProviderError:
            return 0
        return sum(int(one.get("Size", 0)) for one in found)
