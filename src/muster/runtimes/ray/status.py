"""ClusterStatus is what `ray status` knows, as a value with Ray's attribute names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from muster.base.resources import shown
from muster.cluster.model import Constraint, Demand, Gang


def status_text(status: ClusterStatus) -> str:
    """Returns one heading per kind of content; an empty one is left out."""
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
    """A ResourceUsage is one resource of a node or of the cluster."""

    resource_name: str
    total: float
    used: float


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A NodeInfo is a node that has joined: `node_status` is RUNNING, IDLE, DRAINING or DEAD."""

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
    """A LaunchInfo counts machines that were requested or refused."""

    ray_node_type_name: str
    instance_type_name: str
    count: int
    request_ts_s: int
    failed_ts_s: int | None = None
    details: str = ""


class PendingNode(Struct, frozen=True, kw_only=True):
    """A PendingNode is a machine that exists and has not joined."""

    instance_id: str
    ray_node_type_name: str
    instance_type_name: str
    ip_address: str
    details: str


class ResourceDemands(Struct, frozen=True, kw_only=True):
    """A ResourceDemands holds what waits, and what of it is infeasible as the cluster is configured."""

    ray_task_actor_demand: tuple[Demand, ...] = ()
    placement_group_demand: tuple[Gang, ...] = ()
    cluster_constraint_demand: tuple[Constraint, ...] = ()
    infeasible_demand: tuple[Demand, ...] = ()
    infeasible_placement_group_demand: tuple[Gang, ...] = ()
    infeasible_constraint_demand: tuple[Constraint, ...] = ()


class Stats(Struct, frozen=True, kw_only=True):
    """A Stats holds the versions of both sides; an `autoscaler_version` of -1: none has ever reported."""

    cluster_resource_state_version: int = 0
    autoscaler_version: int = -1
    session_name: str = ""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """A ClusterStatus is one moment of a cluster; `str()` formats it for users."""

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
