"""Run muster's planner on a workload: the whole pass, from PackRequest to Packing."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import Timed, timed
from bench.workloads import DemandData, GangData, NodeData, NodeTypeData, Workload
from muster.base.resources import Resources
from muster.cluster.model import Constraint, Demand, Gang, NodeType, Objective, Strategy
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import Packing, PackNode, PackRequest, TypeOffer


def plan(workload: Workload, objective: Objective) -> Timed:
    """Run one planning pass on fresh input (nothing is cached from an earlier one), in CPU seconds."""
    return timed(lambda: request_of(workload, objective), pack)


def unserved(packing: Packing) -> int:
    """Return the number of single requests without a place."""
    return sum(outcome.unplaced for outcome in packing.demands)


def unserved_in_all(packing: Packing) -> int:
    """Return the number of requests of every kind without a place."""
    outcomes = (*packing.demands, *packing.gangs, *packing.constraints)
    return sum(outcome.unplaced for outcome in outcomes)


def request_of(workload: Workload, objective: Objective) -> PackRequest:
    return PackRequest(
        now=0.0,
        nodes=tuple(node_of(node) for node in workload.nodes),
        offers=tuple(offer_of(node_type) for node_type in workload.node_types),
        max_nodes=workload.max_num_nodes,
        constraints=(Constraint(demands=demands_of(workload.constraints)),) if workload.constraints else (),
        gangs=tuple(gang_of(gang) for gang in workload.gangs),
        demands=demands_of(workload.demands),
        objective=objective,
        idle_timeout_s=workload.idle_timeout_s,
    )


def node_of(node: NodeData) -> PackNode:
    return PackNode(
        key=node.id,
        node_type=node.type,
        total=Resources.of(node.total),
        available=Resources.of(node.available),
        labels=node.labels,
        idle_s=node.idle_ms / 1000,
    )


def offer_of(data: NodeTypeData) -> TypeOffer:
    node_type = NodeType(
        name=data.name,
        resources=Resources.of(data.resources),
        min_nodes=data.min_workers,
        max_nodes=data.max_workers,
        labels=data.labels,
        price_per_hour=data.price_per_hour,
    )
    return TypeOffer(node_type=node_type, room=data.max_workers)


def demands_of(demands: Sequence[DemandData]) -> tuple[Demand, ...]:
    return tuple(Demand(shape=Resources.of(demand.shape), count=demand.count) for demand in demands)


def gang_of(gang: GangData) -> Gang:
    bundles = tuple(Demand(shape=Resources.of(bundle)) for bundle in gang.bundles)
    return Gang(gang_id=gang.id, strategy=Strategy(gang.strategy), options=(bundles,))
