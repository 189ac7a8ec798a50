"""Read Ray's GetClusterStatusReply as a ClusterStatus: what `ray status` knows, with Ray's attribute names.

Pure; `muster.autoscaler.sdk` imports it lazily.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from muster.base.resources import SCALE, Resources, shown
from muster.cluster.model import Constraint, Demand, Gang
from muster.runtimes.ray.parse import Unreadable, parse_infeasible, parse_node, parse_state

if TYPE_CHECKING:
    from ray.core.generated import autoscaler_pb2


def status_text(status: ClusterStatus) -> str:
    """Return one heading per kind of content; an empty one is left out."""
    demands = status.resource_demands
    parts = {
        "Active nodes": _by_type(status.active_nodes),
        "Idle nodes": _by_type(status.idle_nodes),
        "Launching": (f"{one.count} {one.ray_node_type_name}" for one in status.pending_launches),
        "Arriving": (
            f"{one.instance_id}: {one.ray_node_type_name}, {one.details.lower() or 'starting'}"
            for one in status.pending_nodes
        ),
        "Failed launches": (
            f"{one.count} {one.ray_node_type_name}: {one.details or 'no reason was given'}"
            for one in status.failed_launches
        ),
        "Dead nodes": _by_type(status.failed_nodes),
        "Usage": (_used(one) for one in status.cluster_resource_usage),
        "Waiting": (*_tasks(demands.ray_task_actor_demand), *_gangs(demands.placement_group_demand)),
        "Requested": _requested(demands.cluster_constraint_demand),
        "No place for": (
            *_tasks(demands.infeasible_demand),
            *_gangs(demands.infeasible_placement_group_demand),
            *_requested(demands.infeasible_constraint_demand),
        ),
    }
    lines: list[str] = []
    for heading, news in parts.items():
        found = [f"  {line}" for line in news]
        lines += [f"{heading}:", *found] if found else []
    return "\n".join(lines)


def _by_type(nodes: Iterable[NodeInfo]) -> Iterator[str]:
    counts = Counter(one.ray_node_type_name or f"node_{one.node_id}" for one in nodes)
    return (f"{count} {name}" for name, count in sorted(counts.items()))


def _used(usage: ResourceUsage) -> str:
    free_name, _, total = shown(usage.resource_name, usage.total).partition(": ")
    used = shown(usage.resource_name, usage.used).partition(": ")[2]
    return f"{used} of {total} {free_name}"


def _tasks(demands: Iterable[Demand]) -> Iterator[str]:
    return (f"{one.count} x {one.name}, tasks or actors" for one in demands)


def _gangs(gangs: Iterable[Gang]) -> Iterator[str]:
    for gang in gangs:
        shapes = Counter(one.name for one in (gang.options[0] if gang.options else ()))
        bundles = ", ".join(f"{count} x {name}" for name, count in shapes.items())
        yield f"{bundles}, placement group {gang.gang_id} ({gang.strategy.value})"


def _requested(constraints: Iterable[Constraint]) -> Iterator[str]:
    return (f"{one.count} x {one.name}, request_resources" for made in constraints for one in made.demands)


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """One resource of a node or of the cluster."""

    resource_name: str
    total: float
    used: float


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A node that has joined: `node_status` is RUNNING, IDLE, DRAINING or DEAD."""

    node_id: str
    instance_id: str
    ray_node_type_name: str
    instance_type_name: str
    ip_address: str
    node_status: str
    idle_time_ms: int
    is_head: bool
    resource_usage: tuple[ResourceUsage, ...]
    labels: Mapping[str, str]
    node_activity: tuple[str, ...] = ()


class LaunchInfo(Struct, frozen=True, kw_only=True):
    """Counts machines that were requested or refused."""

    ray_node_type_name: str
    instance_type_name: str
    count: int
    request_ts_s: int
    failed_ts_s: int | None = None
    details: str = ""


class PendingNode(Struct, frozen=True, kw_only=True):
    """A machine that exists and has not joined."""

    instance_id: str
    ray_node_type_name: str
    instance_type_name: str
    ip_address: str
    details: str


class ResourceDemands(Struct, frozen=True, kw_only=True):
    """Holds what waits, and what of it is infeasible as the cluster is configured."""

    ray_task_actor_demand: tuple[Demand, ...] = ()
    placement_group_demand: tuple[Gang, ...] = ()
    cluster_constraint_demand: tuple[Constraint, ...] = ()
    infeasible_demand: tuple[Demand, ...] = ()
    infeasible_placement_group_demand: tuple[Gang, ...] = ()
    infeasible_constraint_demand: tuple[Constraint, ...] = ()


class Stats(Struct, frozen=True, kw_only=True):
    """Holds the versions of both sides; an `autoscaler_version` of -1: none has ever reported."""

    cluster_resource_state_version: int = 0
    autoscaler_version: int = -1
    session_name: str = ""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """One moment of a cluster; `str()` formats it for users."""

    active_nodes: tuple[NodeInfo, ...] = ()
    idle_nodes: tuple[NodeInfo, ...] = ()
    failed_nodes: tuple[NodeInfo, ...] = ()
    pending_launches: tuple[LaunchInfo, ...] = ()
    failed_launches: tuple[LaunchInfo, ...] = ()
    pending_nodes: tuple[PendingNode, ...] = ()
    cluster_resource_usage: tuple[ResourceUsage, ...] = ()
    resource_demands: ResourceDemands = ResourceDemands()
    stats: Stats = Stats()

    def __str__(self) -> str:
        return status_text(self)


T = TypeVar("T")
_UNCOUNTED = "node:"  # every node has one: no information about the cluster


def status_from_bytes(reply: bytes) -> ClusterStatus:
    """Return the status in a reply as GcsClient returns it."""
    from ray.core.generated import autoscaler_pb2

    return parse_status(autoscaler_pb2.GetClusterStatusReply.FromString(reply))


def parse_status(reply: autoscaler_pb2.GetClusterStatusReply) -> ClusterStatus:
    """Return the status; a node that drains still counts as active."""
    state, ours = reply.cluster_resource_state, reply.autoscaling_state
    nodes = [_node(one) for one in state.node_states]
    return ClusterStatus(
        active_nodes=tuple(one for one in nodes if one.node_status not in ("DEAD", "IDLE")),
        idle_nodes=tuple(one for one in nodes if one.node_status == "IDLE"),
        failed_nodes=tuple(one for one in nodes if one.node_status == "DEAD"),
        pending_launches=tuple(_launch(one, one.request_ts) for one in ours.pending_instance_requests),
        failed_launches=tuple(
            replace(_launch(one, one.start_ts), failed_ts_s=one.failed_ts, details=one.reason)
            for one in ours.failed_instance_requests
        ),
        pending_nodes=tuple(
            PendingNode(**{name: getattr(one, name) for name in PendingNode.__struct_fields__})
            for one in ours.pending_instances
        ),
        cluster_resource_usage=_sum(one for one in nodes if one.node_status != "DEAD"),
        resource_demands=_demands(state, ours),
        stats=Stats(
            cluster_resource_state_version=state.cluster_resource_state_version,
            autoscaler_version=ours.autoscaler_state_version if reply.HasField("autoscaling_state") else -1,
            session_name=state.cluster_session_name,
        ),
    )


def _node(state: autoscaler_pb2.NodeState) -> NodeInfo:
    node = parse_node(state)
    return NodeInfo(
        node_id=node.node_id,
        instance_id=state.instance_id,
        ray_node_type_name=state.ray_node_type_name,
        instance_type_name=state.instance_type_name,
        ip_address=state.node_ip_address,
        node_status=node.status.name,
        idle_time_ms=round(node.idle_s * 1000),
        is_head=node.is_head,
        resource_usage=_usage(node.total, node.available),
        labels=node.labels,
        node_activity=tuple(state.node_activity),
    )


def _usage(total: Resources, available: Resources) -> tuple[ResourceUsage, ...]:
    return tuple(
        ResourceUsage(
            resource_name=name, total=units / SCALE, used=(units - min(available.units(name), units)) / SCALE
        )
        for name, units in sorted(total.items())
    )


def _sum(nodes: Iterable[NodeInfo]) -> tuple[ResourceUsage, ...]:
    total: dict[str, float] = {}
    used: dict[str, float] = {}
    for one in (one for node in nodes for one in node.resource_usage):
        if not one.resource_name.startswith(_UNCOUNTED):
            total[one.resource_name] = total.get(one.resource_name, 0.0) + one.total
            used[one.resource_name] = used.get(one.resource_name, 0.0) + one.used
    return tuple(ResourceUsage(resource_name=n, total=total[n], used=used[n]) for n in sorted(total))


def _launch(
    row: autoscaler_pb2.PendingInstanceRequest | autoscaler_pb2.FailedInstanceRequest, request_ts_s: int
) -> LaunchInfo:
    return LaunchInfo(
        ray_node_type_name=row.ray_node_type_name,
        instance_type_name=row.instance_type_name,
        count=row.count,
        request_ts_s=request_ts_s,
    )


def _demands(
    state: autoscaler_pb2.ClusterResourceState, ours: autoscaler_pb2.AutoscalingState
) -> ResourceDemands:
    seen, infeasible = parse_state(state), parse_infeasible(ours)
    return ResourceDemands(
        ray_task_actor_demand=_readable(seen.demands),
        placement_group_demand=_readable(seen.gangs),
        cluster_constraint_demand=_readable(seen.constraints),
        infeasible_demand=_readable(infeasible.demands),
        infeasible_placement_group_demand=_readable(infeasible.gangs),
        infeasible_constraint_demand=_readable(infeasible.constraints),
    )


def _readable(rows: Iterable[T]) -> tuple[T, ...]:
    return tuple(row for row in rows if not isinstance(row, Unreadable))
