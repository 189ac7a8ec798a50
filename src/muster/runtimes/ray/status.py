"""ClusterStatus: what `ray status` knows, as a value with Ray's attribute names. Made by `parse_status`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from muster.cluster.model import Constraint, Demand, Gang
from muster.engines.ray.gcs.status_text import status_text


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
    """Machines asked for (`pending_launches`) or refused (`failed_launches`: `details` says why)."""

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
    """What waits, and what of it has no place as the cluster is configured."""

    ray_task_actor_demand: tuple[Demand, ...] = ()
    placement_group_demand: tuple[Gang, ...] = ()
    cluster_constraint_demand: tuple[Constraint, ...] = ()
    infeasible_demand: tuple[Demand, ...] = ()
    infeasible_placement_group_demand: tuple[Gang, ...] = ()
    infeasible_constraint_demand: tuple[Constraint, ...] = ()


class Stats(Struct, frozen=True, kw_only=True):
    """Versions of both sides; -1 as `autoscaler_version`: none has ever reported."""

    cluster_resource_state_version: int = 0
    autoscaler_version: int = -1
    session_name: str = ""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """One moment of a cluster; `str()` of it is for people."""

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
