"""Reads Ray's GetClusterStatusReply as a ClusterStatus. Pure; `muster.autoscaler.sdk` imports it lazily."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from muster.base.resources import SCALE, Resources
from muster.runtimes.ray.parse import Unreadable, parse_infeasible, parse_node, parse_state
from muster.runtimes.ray.status import (
    ClusterStatus,
    LaunchInfo,
    NodeInfo,
    PendingNode,
    ResourceDemands,
    ResourceUsage,
    Stats,
)

if TYPE_CHECKING:
    from ray.core.generated import autoscaler_pb2

T = TypeVar("T")
_UNCOUNTED = "node:"  # every node has one of its own: no information about the cluster


def status_from_bytes(reply: bytes) -> ClusterStatus:
    """Returns the status in a reply as GcsClient returns it."""
    from ray.core.generated import autoscaler_pb2

    return parse_status(autoscaler_pb2.GetClusterStatusReply.FromString(reply))


def parse_status(reply: autoscaler_pb2.GetClusterStatusReply) -> ClusterStatus:
    """Returns the status; a node that drains still counts as active."""
    state, ours = reply.cluster_resource_state, reply.autoscaling_state
    nodes = [_node(one) for one in state.node_states]
    return ClusterStatus(
        active_nodes=tuple(one for one in nodes if one.node_status not in ("DEAD", "IDLE")),
        idle_nodes=tuple(one for one in nodes if one.node_status == "IDLE"),
        failed_nodes=tuple(one for one in nodes if one.node_status == "DEAD"),
        pending_launches=tuple(_launch(one) for one in ours.pending_instance_requests),
        failed_launches=tuple(_failure(one) for one in ours.failed_instance_requests),
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


def _launch(row: autoscaler_pb2.PendingInstanceRequest) -> LaunchInfo:
    return LaunchInfo(
        ray_node_type_name=row.ray_node_type_name,
        instance_type_name=row.instance_type_name,
        count=row.count,
        request_ts_s=row.request_ts,
    )


def _failure(row: autoscaler_pb2.FailedInstanceRequest) -> LaunchInfo:
    return LaunchInfo(
        ray_node_type_name=row.ray_node_type_name,
        instance_type_name=row.instance_type_name,
        count=row.count,
        request_ts_s=row.start_ts,
        failed_ts_s=row.failed_ts,
        details=row.reason,
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
