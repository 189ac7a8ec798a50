"""Write ScalingReport and ClusterSpec as Ray's messages, for `ray status` and Ray's libraries.

Pure: values in, messages out; the inverse of `parse`. GcsNodeSource and StatePublisher import it lazily,
because it imports Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ray.core.generated import autoscaler_pb2 as pb

from muster.base.resources import SCALE
from muster.cluster.model import ClusterSpec, Demand, Gang, LabelOperator, NodeType, Strategy
from muster.cluster.plan import ScalingReport
from muster.runtimes.ray.parse import GANG_PREFIX

_HAS_LOCALITY = "locality_requirement" in pb.BundleSelector.DESCRIPTOR.fields_by_name  # not in older Rays
_OPERATORS = {LabelOperator.IN: 1, LabelOperator.NOT_IN: 2}


def scaling_state(version: int, report: ScalingReport) -> pb.AutoscalingState:
    """Return the autoscaler's state, an entry per machine: `ray status` counts entries, not `count`."""
    counted = [
        pb.ResourceRequestByCount(request=request(one), count=one.count)
        for one in report.infeasible_constraints
    ]
    return pb.AutoscalingState(
        last_seen_cluster_resource_state_version=report.seen_runtime_version,
        autoscaler_state_version=version,
        pending_instance_requests=_pending_requests(report),
        pending_instances=[
            pb.PendingInstance(
                instance_type_name=one.machine_type,
                ray_node_type_name=one.node_type,
                instance_id=one.instance_id,
                ip_address=one.ip,
                details=one.details,
            )
            for one in report.pending_instances
        ],
        failed_instance_requests=_failed_requests(report),
        infeasible_resource_requests=[request(demand) for demand in report.infeasible_demands],
        infeasible_gang_resource_requests=[gang_request(gang) for gang in report.infeasible_gangs],
        infeasible_cluster_resource_constraints=(
            [pb.ClusterResourceConstraint(resource_requests=counted)] if counted else []
        ),
    )


def _pending_requests(report: ScalingReport) -> list[pb.PendingInstanceRequest]:
    return [
        pb.PendingInstanceRequest(
            instance_type_name=one.machine_type,
            ray_node_type_name=one.node_type,
            count=1,
            request_ts=_whole_seconds(one.requested_at),
        )
        for one in report.pending_requests
        for _ in range(one.count)
    ]


def _failed_requests(report: ScalingReport) -> list[pb.FailedInstanceRequest]:
    return [
        pb.FailedInstanceRequest(
            instance_type_name=one.machine_type,
            ray_node_type_name=one.node_type,
            count=1,
            reason=one.reason,
            start_ts=_whole_seconds(one.started_at),
            failed_ts=_whole_seconds(one.failed_at),
        )
        for one in report.failed_launches
    ]


def request(demand: Demand) -> pb.ResourceRequest:
    """Return one request, as Ray would have sent it."""
    message = pb.ResourceRequest(resources_bundle=demand.shape.to_floats())
    for selector in demand.selectors:
        # Adds to the message itself: the type of its parts has another name in older Rays.
        conditions = message.label_selectors.add().label_constraints
        for match in selector:
            conditions.add(
                label_key=match.key, operator=_OPERATORS[match.operator], label_values=match.values
            )
    if demand.avoid is not None:
        apart = message.placement_constraints.add().anti_affinity
        apart.label_name, apart.label_value = demand.avoid
    return message


def gang_request(gang: Gang) -> pb.GangResourceRequest:
    """Return a group that finds no place; the constraint of a strict strategy is put back."""
    options = [pb.BundleSelector(resource_requests=_bundles(gang, bundles)) for bundles in gang.options]
    message = pb.GangResourceRequest(
        requests=options[0].resource_requests if options else (),
        bundle_selectors=options,
        details=f"{gang.gang_id}:{gang.strategy.value}|PENDING",
    )
    for option in message.bundle_selectors if _HAS_LOCALITY else ():
        if gang.locality_label:
            option.locality_requirement.locality_constraint.label_name = gang.locality_label
            option.locality_requirement.locality_constraint.placement_strategy = 2  # STRICT_PACK
    return message


def _bundles(gang: Gang, bundles: Iterable[Demand]) -> list[pb.ResourceRequest]:
    requests = [request(bundle) for bundle in bundles for _ in range(bundle.count)]
    for one in requests:
        if gang.strategy is Strategy.STRICT_PACK:
            one.placement_constraints.add().affinity.label_name = GANG_PREFIX + gang.gang_id
        elif gang.strategy is Strategy.STRICT_SPREAD and not one.placement_constraints:
            one.placement_constraints.add().anti_affinity.label_name = GANG_PREFIX + gang.gang_id
    return requests


def cluster_config(spec: ClusterSpec) -> pb.ClusterConfig:
    """Return how large the cluster may become; Ray's libraries and RayEngine ask before they wait."""
    names = sorted({name for one in spec.node_types for name in one.resources})
    return pb.ClusterConfig(
        node_group_configs=[_group(one) for one in spec.node_types],
        min_resources={
            name: sum(one.resources.units(name) * one.min_nodes for one in spec.node_types) // SCALE
            for name in names
        },
        max_resources={name: spec.most_of(name) // SCALE for name in names},
    )


def _group(node_type: NodeType) -> pb.NodeGroupConfig:
    resources = {name: int(quantity) for name, quantity in node_type.resources.to_floats().items()}
    counts = {"min_count": node_type.min_nodes, "max_count": node_type.most_nodes}
    return pb.NodeGroupConfig(name=node_type.name, resources=resources, **counts)


def _whole_seconds(at: float) -> int:
    return int(at) if math.isfinite(at) else 0
