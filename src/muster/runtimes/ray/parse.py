"""Read Ray's ClusterResourceState as a RuntimeReport. Pure: messages in, values out.

A row that makes no sense never hides the others: a node keeps its name, and an Unreadable, which the Observer
sets aside and reports, takes the place of a demand. Called by GcsNodeSource.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from muster.base.ids import CloudId, NodeId
from muster.base.resources import Resources
from muster.cluster.model import (
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    Selector,
    Strategy,
)

if TYPE_CHECKING:
    from ray.core.generated import autoscaler_pb2, common_pb2

HEAD_RESOURCE = "node:__internal_head__"
GANG_PREFIX = "_PG_"
_SHARE_OF_A_GROUP = re.compile(r"_group_(\d+_)?[0-9a-f]{36}$")  # `CPU_group_0_<id>`, `bundle_group_<id>`

T = TypeVar("T")
_OPERATORS = {1: LabelOperator.IN, 2: LabelOperator.NOT_IN}
_STATUSES = {status.value: status for status in NodeStatus}
_STRATEGIES = {strategy.value: strategy for strategy in Strategy}


@dataclass(frozen=True)
class Unreadable:
    """Stands where a row could not be understood."""

    why: str
    row: str


def parse_state(state: autoscaler_pb2.ClusterResourceState) -> RuntimeReport:
    """Return one snapshot of the cluster."""
    # A task that asks for shares of its placement group, which no machine offers, waits for the group,
    # listed as a separate gang; or for room inside it, where no machine helps.
    outside_groups = (
        row
        for row in state.pending_resource_requests
        if not any(_SHARE_OF_A_GROUP.search(name) for name in row.request.resources_bundle)
    )
    return RuntimeReport(
        version=state.cluster_resource_state_version,
        nodes=tuple(parse_node(node) for node in state.node_states),
        demands=_rows(parse_counted, outside_groups),
        gangs=_rows(parse_gang, state.pending_gang_resource_requests),
        constraints=_rows(parse_constraint, state.cluster_resource_constraints),
    )


def parse_infeasible(ours: autoscaler_pb2.AutoscalingState) -> RuntimeReport:
    """Return what an autoscaler reported as infeasible, as a report without nodes."""
    return RuntimeReport(
        version=ours.last_seen_cluster_resource_state_version,
        demands=_rows(lambda one: _demand(one, 1), ours.infeasible_resource_requests),
        gangs=_rows(parse_gang, ours.infeasible_gang_resource_requests),
        constraints=_rows(parse_constraint, ours.infeasible_cluster_resource_constraints),
    )


def parse_node(node: autoscaler_pb2.NodeState) -> NodeReport:
    """Return a node; one that cannot be understood is still listed, or its record would take it for gone."""
    node_id = NodeId(node.node_id.hex())
    cloud_id = CloudId(node.instance_id) if node.instance_id else None
    try:
        total, available = _size(node.total_resources), _size(node.available_resources)
    except ValueError:
        return NodeReport(node_id=node_id, cloud_id=cloud_id, status=NodeStatus.UNSPECIFIED)
    return NodeReport(
        node_id=node_id,
        cloud_id=cloud_id,
        node_type=node.ray_node_type_name,
        status=_STATUSES.get(node.status, NodeStatus.UNSPECIFIED),
        is_head=HEAD_RESOURCE in node.total_resources,
        total=total,
        available=available,
        labels={**getattr(node, "labels", {}), **node.dynamic_labels},  # older Rays: GcsNodeSource adds them
        idle_s=max(node.idle_duration_ms, 0) / 1000,
        ip=node.node_ip_address,
    )


def parse_counted(row: autoscaler_pb2.ResourceRequestByCount) -> Demand:
    """Return equal requests of tasks and actors, or of a constraint."""
    return _demand(row.request, row.count)


def parse_constraint(row: autoscaler_pb2.ClusterResourceConstraint) -> Constraint:
    return Constraint(demands=tuple(parse_counted(one) for one in row.resource_requests))


def parse_gang(row: autoscaler_pb2.GangResourceRequest) -> Gang:
    """Return a placement group; its alternatives come in `bundle_selectors`, older heads send `requests`."""
    # Older Rays know no locality: each option is then everywhere.
    options = [
        (one.resource_requests, getattr(one, "locality_requirement", None)) for one in row.bundle_selectors
    ]
    asked = [request for requests, _ in options for request in requests] or list(row.requests)
    gang_id, _, rest = row.details.partition(":")
    localities = [
        where.locality_constraint
        for _, where in options
        if where is not None and where.HasField("locality_constraint")
    ]
    labels = (_constraint_label(one) for request in asked for one in request.placement_constraints)
    # The group's id, as nodes that hold one of its bundles carry it.
    by_label = next((name[len(GANG_PREFIX) :] for name in labels if name.startswith(GANG_PREFIX)), "")
    return Gang(
        gang_id=by_label or gang_id,
        strategy=_STRATEGIES.get(rest.partition("|")[0]) or _strategy(asked),
        options=tuple(
            _bundles(requests, () if where is None else parse_selector(where.label_selector))
            for requests, where in options
        )
        or (_bundles(row.requests, ()),),
        locality_label=localities[0].label_name if localities else "",
    )


def _bundles(requests: Iterable[autoscaler_pb2.ResourceRequest], everywhere: Selector) -> tuple[Demand, ...]:
    """Return one demand per bundle; what keeps bundles together or apart is the gang's strategy.

    Bundles that some other label keeps apart stay so (Ray itself sends only the group's own).
    """
    return tuple(_demand(request, 1, everywhere=everywhere, in_gang=True) for request in requests)


def _demand(
    request: autoscaler_pb2.ResourceRequest, count: int, *, everywhere: Selector = (), in_gang: bool = False
) -> Demand:
    selectors = tuple(parse_selector(one) for one in request.label_selectors)
    if everywhere:
        selectors = tuple((*selector, *everywhere) for selector in selectors or ((),))
    avoid = _avoided(request)
    if in_gang and avoid is not None and avoid[0].startswith(GANG_PREFIX):
        avoid = None
    shape = _size(request.resources_bundle)
    name = demand_name(shape, selectors)
    return Demand(shape=shape, count=count, selectors=selectors, avoid=avoid, name=name)


def demand_name(shape: Resources, selectors: Sequence[Selector]) -> str:
    """Return the demand's name in verdicts: Ray sends no owner, and its order is not stable."""
    wanted = " or ".join(_selector_text(one) for one in selectors if one)
    return f"{{{shape}}}" + (f" on {wanted}" if wanted else "")


def _selector_text(selector: Selector) -> str:
    return " and ".join(
        f"{one.key} {one.operator.value.replace('-', ' ')} ({', '.join(one.values)})" for one in selector
    )


def parse_selector(selector: common_pb2.LabelSelector) -> Selector:
    return tuple(_condition(one) for one in selector.label_constraints)


def _condition(one: common_pb2.LabelSelectorConstraint) -> LabelMatch:
    operator = _OPERATORS.get(one.operator)
    if operator is None:  # of a newer Ray: it matches nowhere, so nothing is launched for it in error
        return LabelMatch(one.label_key, LabelOperator.IN, ())
    return LabelMatch(one.label_key, operator, tuple(sorted(one.label_values)))


def _avoided(request: autoscaler_pb2.ResourceRequest) -> tuple[str, str] | None:
    for constraint in request.placement_constraints:
        if constraint.HasField("anti_affinity"):
            return constraint.anti_affinity.label_name, constraint.anti_affinity.label_value
    return None


def _constraint_label(constraint: autoscaler_pb2.PlacementConstraint) -> str:
    field = "affinity" if constraint.HasField("affinity") else "anti_affinity"
    return str(getattr(constraint, field).label_name)


def _strategy(requests: Sequence[autoscaler_pb2.ResourceRequest]) -> Strategy:
    """Return the strategy by the constraints alone, when the details do not name it."""
    constraints = [one for request in requests for one in request.placement_constraints]
    if any(one.HasField("affinity") for one in constraints):
        return Strategy.STRICT_PACK
    return Strategy.STRICT_SPREAD if constraints else Strategy.PACK


def _size(quantities: Mapping[str, float]) -> Resources:
    """Return the amounts, negative ones as 0: Ray lends out a CPU whose task waits."""
    return Resources.of({name: max(value, 0.0) for name, value in quantities.items()})


def _rows(parse: Callable[[Any], T], rows: Iterable[Any]) -> tuple[T, ...]:
    found: list[Any] = []
    for row in rows:
        try:
            found.append(parse(row))
        except ValueError as error:
            found.append(Unreadable(why=str(error), row=str(row)[:200]))
    return tuple(found)
