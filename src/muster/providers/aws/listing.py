"""MachineList knows the machines of a cluster: one call lists them all, all else is read from there.

EC2 lists late: a machine made a moment ago is shown although the list lacks it, and one that was ended is
not, although the list still has it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, NodeKind
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.tags import TAG_CLUSTER, TAG_PART, TAG_RUN, from_aws, to_aws
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_UNMANAGED,
    NODE_KIND_WORKER,
    TAG_MUSTER_MARKET,
    TAG_MUSTER_ZONE,
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_LAUNCH_REQUEST,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
    request_of,
)

PAGE = 1000
LATE_S = 60.0  # for so long the list may lack a new machine, or still have an ended one
QUIET_S = 60.0  # without a change by this process
QUIET_LIST_S = 60.0  # how old a list may be then
_SETTLED = ("running", "stopped")
LIVING = ("pending", "running")
KEPT = ("stopping", "stopped")
_KINDS = {NODE_KIND_HEAD: NodeKind.HEAD, NODE_KIND_WORKER: NodeKind.WORKER}
_NOT_OURS = frozenset({"", NODE_KIND_UNMANAGED})


class Ec2Machine(Struct, frozen=True, kw_only=True):
    """One instance as EC2 describes it."""

    node_id: str
    state: str = "pending"
    tags: Mapping[str, str] = {}
    internal_ip: str = ""
    external_ip: str = ""
    zone: str = ""
    is_spot: bool = False
    machine_type: str = ""
    volumes: tuple[str, ...] = ()

    @property
    def lives(self) -> bool:
        return self.state in LIVING

    @property
    def node_type(self) -> str:
        return self.tags.get(TAG_RAY_USER_NODE_TYPE, "")

    @property
    def kind(self) -> NodeKind | None:
        """None for a machine that muster does not manage."""
        kind = self.tags.get(TAG_RAY_NODE_KIND, "")
        return None if kind in _NOT_OURS else _KINDS.get(kind, NodeKind.UNMANAGED)

    @property
    def is_of_fleet(self) -> bool:
        return TAG_RUN not in self.tags

    @property
    def request_id(self) -> RequestId | None:
        return request_of(self.tags.get(TAG_RAY_LAUNCH_REQUEST))

    def to_instance(self, kind: NodeKind) -> CloudInstance:
        """Return the machine as the loop knows it; one of an unknown kind exists, and has no details."""
        node_id = CloudId(self.node_id)
        if kind is NodeKind.UNMANAGED:
            return CloudInstance(cloud_id=node_id, node_type=self.node_type, kind=kind, is_running=False)
        tags = self.shown_tags()
        return CloudInstance(
            cloud_id=node_id,
            node_type=self.node_type,
            kind=kind,
            is_running=self.state == "running",
            request_id=self.request_id,
            launch_hash=tags.get(TAG_RAY_LAUNCH_CONFIG, ""),
            internal_ip=self.internal_ip,
            external_ip=self.external_ip,
            zone=tags.get(TAG_MUSTER_ZONE, ""),
            market=tags.get(TAG_MUSTER_MARKET, ""),
        )

    def shown_tags(self) -> dict[str, str]:
        """Return its tags; zone and market of a machine launched from an offer are those it really has."""
        found = dict(self.tags)
        if found.get(TAG_MUSTER_ZONE) and self.zone:
            found[TAG_MUSTER_ZONE] = self.zone
        market = found.get(TAG_MUSTER_MARKET)
        if market is not None and self.zone and self.is_spot != (market == "spot"):
            found[TAG_MUSTER_MARKET] = "spot" if self.is_spot else "on-demand"
        return found


def read_machine(item: Mapping[str, Any]) -> Ec2Machine:
    """Return an instance of a DescribeInstances answer."""
    disks = (one.get("Ebs", {}).get("VolumeId", "") for one in item.get("BlockDeviceMappings", ()))
    return Ec2Machine(
        node_id=item["InstanceId"],
        state=item.get("State", {}).get("Name", "pending"),
        tags=from_aws(item.get("Tags")),
        internal_ip=item.get("PrivateIpAddress") or "",
        external_ip=item.get("PublicIpAddress") or "",
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        is_spot=item.get("InstanceLifecycle") == "spot",
        machine_type=item.get("InstanceType", ""),
        volumes=tuple(filter(None, disks)),
    )


class MachineList:
    """The newest list, with what this process has done since."""

    def __init__(self, calls: AwsCalls, cluster_name: str, clock: Clock, *, keeps_stopped: bool) -> None:
        self._calls, self._cluster_name, self._clock = calls, cluster_name, clock
        self._states = [*LIVING, *(KEPT if keeps_stopped else ())]
        self._machines: dict[str, Ec2Machine] = {}
        self._new: dict[str, float] = {}  # id -> when it was made; gone once it was listed
        self._ended: dict[str, float] = {}  # id -> when it was ended or stopped
        self._changed_at, self._listed_at = clock.monotonic(), float("-inf")
        self._written: list[tuple[float, str, dict[str, str]]] = []  # when, which, tags
        self._lock = threading.Lock()

    def newest(self) -> dict[str, Ec2Machine]:
        """Return the machines that live, as `refresh` does; in quiet times from a list a minute old.

        Quiet means that this process has changed nothing for a while, and that all machines run.
        """
        now = self._clock.monotonic()
        with self._lock:
            is_quiet = now - self._changed_at > QUIET_S and now - self._listed_at <= QUIET_LIST_S
            is_quiet = is_quiet and all(one.state in _SETTLED for one in self._machines.values())
        return self.living() if is_quiet else self.refresh()

    def refresh(self) -> dict[str, Ec2Machine]:
        """List the machines that live; one call for each thousand."""
        filters = [
            *to_filters({TAG_CLUSTER: self._cluster_name}),
            {"Name": "instance-state-name", "Values": self._states},
        ]
        began = self._clock.monotonic()
        items = self._calls.pages("describe_instances", "Reservations", Filters=filters, MaxResults=PAGE)
        found = {one.node_id: one for one in _instances(items)}
        with self._lock:
            self._merge(found, began)
        return self.living()

    def _merge(self, found: dict[str, Ec2Machine], began: float) -> None:
        now = self._clock.monotonic()
        self._listed_at = began
        self._new = {n: at for n, at in self._new.items() if n not in found and now - at <= LATE_S}
        self._ended = {n: at for n, at in self._ended.items() if now - at <= LATE_S}
        late = {n: self._machines[n] for n in self._new if n in self._machines}
        self._machines = {**found, **late}
        # What was written while the list was on its way is newer than the list.
        self._written = [one for one in self._written if one[0] >= began]
        for _, node_id, tags in self._written:
            self._add_tags(node_id, tags)

    def living(self) -> dict[str, Ec2Machine]:
        with self._lock:
            return {n: one for n, one in self._machines.items() if one.lives and n not in self._ended}

    def stopped(self) -> list[Ec2Machine]:
        """Return the machines that are stopped, in the order of their ids; those that still stop are not."""
        with self._lock:
            found = [one for one in self._machines.values() if one.state == "stopped"]
        return sorted(found, key=lambda one: one.node_id)

    def kept(self) -> list[Ec2Machine]:
        """Return the machines that are stopped or stop."""
        with self._lock:
            return [one for one in self._machines.values() if one.state in KEPT]

    def get(self, node_id: str) -> Ec2Machine | None:
        """Return a machine of the newest list; one that it lacks is looked up, dead or alive."""
        with self._lock:
            known, is_ended = self._machines.get(node_id), node_id in self._ended
        if known is not None:
            return replace(known, state="terminated") if is_ended else known
        filters = [
            {"Name": "instance-id", "Values": [node_id]},
            *to_filters({TAG_CLUSTER: self._cluster_name}),
        ]
        items = self._calls.pages("describe_instances", "Reservations", Filters=filters)
        return next(iter(_instances(items)), None)

    def of_request(
        self, request_id: RequestId, node_type: str, part: int, *, is_fresh: bool = True
    ) -> dict[str, Ec2Machine]:
        """Return the living machines of one part of a request, as EC2 lists them now, or did last."""
        wanted = request_id, node_type, str(part or "")
        is_read = not is_fresh and self._listed_at >= 0
        return {
            n: one
            for n, one in (self.living() if is_read else self.refresh()).items()
            if (one.request_id, one.node_type, one.tags.get(TAG_PART, "")) == wanted
        }

    def note_made(self, machines: Iterable[Ec2Machine]) -> None:
        """Show machines that were made or started now, until a list does."""
        now = self._clock.monotonic()
        with self._lock:
            self._changed_at = now
            for one in machines:
                if one.node_id not in self._machines or not self._machines[one.node_id].lives:
                    self._machines[one.node_id] = one
                    self._new[one.node_id] = now
                self._ended.pop(one.node_id, None)

    def is_new(self, node_id: str) -> bool:
        """Return whether this process launched a machine a moment ago, and no list has shown it yet."""
        with self._lock:
            return self._clock.monotonic() - self._new.get(node_id, float("-inf")) <= LATE_S

    def note_ended(self, node_ids: Iterable[str]) -> None:
        """Hide machines that were ended now."""
        now = self._clock.monotonic()
        with self._lock:
            self._changed_at = now
            for node_id in node_ids:
                self._ended[node_id] = now
                self._new.pop(node_id, None)

    def note_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._changed_at = now
            self._written.append((now, node_id, dict(tags)))
            self._add_tags(node_id, tags)

    def _add_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        known = self._machines.get(node_id)
        if known is not None:
            self._machines[node_id] = replace(known, tags={**known.tags, **tags})


def to_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return filters of a call that looks, for things with all of these tags."""
    return [{"Name": f"tag:{one['Key']}", "Values": [one["Value"]]} for one in to_aws(tags)]


def _instances(reservations: Iterable[Mapping[str, Any]]) -> Sequence[Ec2Machine]:
    return [read_machine(item) for one in reservations for item in one.get("Instances", ())]
