"""A ClusterStatus for people. Pure; called by `str()` of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from muster.base.resources import shown
from muster.cluster.model import Constraint, Demand, Gang

if TYPE_CHECKING:
    from muster.runtimes.ray.status import (
        ClusterStatus,
        LaunchInfo,
        NodeInfo,
        PendingNode,
        ResourceUsage,
    )


def status_text(status: ClusterStatus) -> str:
    """One heading per kind of news; a heading without news is left out."""
    demands = status.resource_demands
    parts = {
        "Active nodes": _by_type(status.active_nodes),
        "Idle nodes": _by_type(status.idle_nodes),
        "Launching": (f"{one.count} {one.ray_node_type_name}" for one in status.pending_launches),
        "Arriving": (_arriving(one) for one in status.pending_nodes),
        "Failed launches": (_refused(one) for one in status.failed_launches),
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


def _arriving(node: PendingNode) -> str:
    return f"{node.instance_id}: {node.ray_node_type_name}, {node.details.lower() or 'starting'}"


def _refused(launch: LaunchInfo) -> str:
    return f"{launch.count} {launch.ray_node_type_name}: {launch.details or 'no reason was given'}"


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
