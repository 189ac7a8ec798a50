"""StoppedMachines keeps on-demand machines stopped in place of ending them, and starts them again.

With `provider.cache_stopped_nodes: true`. A stopped machine costs its disk only; it is used again for the
same node type with the same config, in the zone that is wanted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from muster.cluster.model import Offer
from muster.errors import ProviderError
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.listing import Ec2Machine, MachineList
from muster.providers.aws.tags import to_aws
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

logger = logging.getLogger(__name__)

GIB_MONTH = 0.08  # $ for a GiB of gp3 in most regions; others are dearer
HOURS_PER_MONTH = 730.0
_SAME = (TAG_RAY_USER_NODE_TYPE, TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_KIND)


def disk_price_per_month(gib: int) -> float:
    """Returns what the disks of a stopped machine cost."""
    return gib * GIB_MONTH


class StoppedMachines:
    """A StoppedMachines stops and starts the machines of one cluster."""

    def __init__(self, calls: AwsCalls, machines: MachineList) -> None:
        self._calls, self._list = calls, machines
        self._lock = threading.Lock()
        self._starting: set[str] = set()  # taken by a launch of this process
        self._stopped_here: set[str] = set()  # until they are started again

    def keep(self, node_ids: Sequence[str]) -> list[str]:
        """Stops the on-demand machines among these; returns those that are to be ended.

        The core asks for the end of a machine again when a list lacks it; one that is kept stays kept.
        """
        asked = [one for one in node_ids if not self._has(one)]
        found = [one for one in map(self._list.get, asked) if one is not None]
        kept = [one for one in found if one.lives and not one.is_spot]
        if kept:
            self._stop(kept)
        names = {one.node_id for one in kept}
        return [one for one in asked if one not in names]

    def _stop(self, machines: Sequence[Ec2Machine]) -> None:
        """Stops machines; what their disks cost is logged."""
        ids = [one.node_id for one in machines]
        self._calls.ec2("stop_instances", InstanceIds=ids)
        with self._lock:
            self._starting -= set(ids)
            self._stopped_here |= set(ids)
        gib = self._disk_gib(machines)
        price = f"their {gib} GiB of disk cost about ${disk_price_per_month(gib):.2f} per month"
        logger.info("stopped %s; %s until `muster down`", ", ".join(ids), price)

    def _has(self, node_id: str) -> bool:
        """Returns whether a machine is kept already: it is not ended when it is asked to end once more."""
        with self._lock:
            is_stopped_here = node_id in self._stopped_here
        return is_stopped_here or any(one.node_id == node_id for one in self._list.kept())

    def take(self, tags: Mapping[str, str], count: int, offer: Offer | None) -> dict[str, Ec2Machine]:
        """Returns machines for a request: those that an earlier attempt has started already, and more."""
        mine = self._list.of_request(tags)
        missing = count - len(mine)
        return mine if missing <= 0 else {**mine, **self._start(tags, missing, offer)}

    def _start(self, tags: Mapping[str, str], count: int, offer: Offer | None) -> dict[str, Ec2Machine]:
        """Starts up to `count` stopped machines as new ones with these tags; returns those that start.

        Tags come first: a machine that was tagged and not started is found and started by the next attempt.
        """
        chosen = self._chosen(tags, count, offer)
        if not chosen:
            return {}
        ids = [one.node_id for one in chosen]
        try:
            self._calls.ec2("create_tags", Resources=ids, Tags=to_aws(tags))
            self._calls.ec2("start_instances", InstanceIds=ids)
        except ProviderError as error:  # sold out, mostly: then new ones are bought
            logger.warning("stopped machines could not be started: %s", error)
            with self._lock:
                self._starting -= set(ids)
            return {}
        with self._lock:
            self._stopped_here -= set(ids)
        return {one.node_id: replace(one, state="pending", tags={**one.tags, **tags}) for one in chosen}

    def _chosen(self, tags: Mapping[str, str], count: int, offer: Offer | None) -> list[Ec2Machine]:
        if offer is not None and offer.market != "on-demand":
            return []
        wanted = {key: tags.get(key) for key in _SAME}
        with self._lock:
            fitting = [
                one
                for one in self._list.stopped()
                if one.node_id not in self._starting
                and not one.is_spot
                and all(one.tags.get(key) == value for key, value in wanted.items())
                and (offer is None or not offer.zone or one.zone == offer.zone)
            ]
            self._starting |= {one.node_id for one in fitting[:count]}
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
