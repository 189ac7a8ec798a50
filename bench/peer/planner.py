"""Run Ray 2.60's ResourceDemandScheduler on one of our workloads, in the peer process."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bench.measure import Timed, timed
from bench.workloads import Bag, GangData, NodeData, Workload


@dataclass(frozen=True)
class PeerPlan:
    """What Ray would do."""

    launch: dict[str, int]
    unserved: int  # single requests without a place
    unserved_gangs: tuple[str, ...]
    idle: frozenset[str]  # nodes that it would end, because nothing was planned onto them


def schedule(workload: Workload) -> Timed:
    """Run one `schedule` call on fresh input, in CPU seconds."""
    logging.disable(logging.CRITICAL)
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler

    result = timed(lambda: request_of(workload), lambda given: ResourceDemandScheduler(None).schedule(given))
    return Timed(plan_of(result.value), result.cpu_s)


def plan_of(reply) -> PeerPlan:
    launch: dict[str, int] = {}
    for request in reply.to_launch:
        launch[request.instance_type] = launch.get(request.instance_type, 0) + request.count
    return PeerPlan(
        launch=launch,
        unserved=len(reply.infeasible_resource_requests),
        unserved_gangs=tuple(gang.details for gang in reply.infeasible_gang_resource_requests),
        idle=frozenset(request.instance_id for request in reply.to_terminate),
    )


def request_of(workload: Workload):
    """Return a SchedulingRequest as Ray's reconciler would make it."""
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
    from ray.autoscaler.v2.scheduler import SchedulingRequest
    from ray.core.generated import autoscaler_pb2 as pb

    types = {
        t.name: NodeTypeConfig(
            name=t.name,
            min_worker_nodes=t.min_workers,
            max_worker_nodes=t.max_workers,
            resources=dict(t.resources),
            labels=dict(t.labels),
        )
        for t in workload.node_types
    }
    by_count = [
        pb.ResourceRequestByCount(request=pb.ResourceRequest(resources_bundle=d.shape), count=d.count)
        for d in workload.demands
    ]
    constraint = [
        pb.ResourceRequestByCount(request=pb.ResourceRequest(resources_bundle=d.shape), count=d.count)
        for d in workload.constraints
    ]
    return SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types,
        max_num_nodes=workload.max_num_nodes,
        idle_timeout_s=workload.idle_timeout_s,
        resource_requests=by_count,
        gang_resource_requests=[gang_of(gang) for gang in workload.gangs],
        cluster_resource_constraints=(
            [pb.ClusterResourceConstraint(resource_requests=constraint)] if constraint else []
        ),
        current_instances=[instance_of(node) for node in workload.nodes],
    )


def gang_of(gang: GangData):
    from ray.core.generated import autoscaler_pb2 as pb

    def bundle(shape: Bag):
        request = pb.ResourceRequest(resources_bundle=shape)
        if gang.strategy == "STRICT_SPREAD":
            request.placement_constraints.add().anti_affinity.label_name = f"_PG_{gang.id}"
        if gang.strategy == "STRICT_PACK":
            request.placement_constraints.add().affinity.label_name = f"_PG_{gang.id}"
        return request

    return pb.GangResourceRequest(requests=[bundle(shape) for shape in gang.bundles], details=gang.id)


def instance_of(node: NodeData):
    """Return a running worker, known to the cloud, to Ray and to the instance manager."""
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated import autoscaler_pb2 as pb
    from ray.core.generated import instance_manager_pb2 as im

    node_id = node.id.encode()
    state = pb.NodeState(
        node_id=node_id,
        instance_id=node.id,
        ray_node_type_name=node.type,
        total_resources=node.total,
        available_resources=node.available,
        labels=node.labels,
        status=pb.NodeStatus.RUNNING,
        idle_duration_ms=node.idle_ms,
    )
    record = im.Instance(
        instance_id=node.id,
        cloud_instance_id=node.id,
        node_id=node_id.hex(),
        status=im.Instance.RAY_RUNNING,
        instance_type=node.type,
        node_kind=im.NodeKind.WORKER,
    )
    return AutoscalerInstance(cloud_instance_id=node.id, ray_node=state, im_instance=record)
