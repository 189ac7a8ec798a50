"""The status view and its text (UT-2, UT-3, UT-4)."""

from __future__ import annotations

import pytest
from ray.core.generated import autoscaler_pb2 as wire
from tests.mistakes.views import assert_view

from muster.base.resources import Resources
from muster.cluster.model import Constraint, Demand, Gang, Strategy
from muster.runtimes.ray.status import (
    ClusterStatus,
    LaunchInfo,
    NodeInfo,
    PendingNode,
    ResourceDemands,
    ResourceUsage,
    Stats,
    parse_status,
)


def a_reply() -> wire.GetClusterStatusReply:
    def asked(cpus: float) -> wire.ResourceRequest:
        return wire.ResourceRequest(resources_bundle={"CPU": cpus})

    def node(number: int, status: int, **more: object) -> wire.NodeState:
        return wire.NodeState(
            node_id=bytes([number]),
            instance_id=f"i-{number}",
            ray_node_type_name="small",
            status=status,
            **more,
        )

    sizes = {"CPU": 4, "memory": 2e9, "node:10.0.0.1": 1}
    gang = wire.GangResourceRequest(details="ab:PACK|PENDING", requests=[asked(2), asked(2)])
    return wire.GetClusterStatusReply(
        cluster_resource_state=wire.ClusterResourceState(
            cluster_resource_state_version=12,
            cluster_session_name="session_x",
            node_states=[
                node(
                    1,
                    wire.RUNNING,
                    total_resources=sizes,
                    available_resources={"CPU": 1, "memory": 1e9, "node:10.0.0.1": 1},
                    node_activity=["Busy workers on node."],
                ),
                node(
                    2,
                    wire.IDLE,
                    total_resources={"CPU": 4},
                    available_resources={"CPU": 4},
                    idle_duration_ms=9,
                ),
                node(3, wire.DEAD),
                node(4, wire.DRAINING),
            ],
            pending_resource_requests=[wire.ResourceRequestByCount(request=asked(1), count=3)],
            pending_gang_resource_requests=[gang],
            cluster_resource_constraints=[
                wire.ClusterResourceConstraint(
                    resource_requests=[wire.ResourceRequestByCount(request=asked(4), count=2)]
                )
            ],
        ),
        autoscaling_state=wire.AutoscalingState(
            autoscaler_state_version=7,
            pending_instance_requests=[
                wire.PendingInstanceRequest(ray_node_type_name="gpu", count=1, request_ts=5)
            ],
            pending_instances=[
                wire.PendingInstance(ray_node_type_name="gpu", instance_id="i-9", details="STARTING")
            ],
            failed_instance_requests=[
                wire.FailedInstanceRequest(
                    ray_node_type_name="gpu", count=1, reason="sold out", start_ts=1, failed_ts=2
                )
            ],
            infeasible_resource_requests=[asked(64)],
        ),
    )


def cpu(size: float, **more: object) -> Demand:
    return Demand(shape=Resources.of(CPU=size), name=f"{{CPU: {size:g}}}", **more)  # type: ignore[arg-type]


@pytest.mark.conformance("UT-2", "UT-3")
def test_every_part_of_the_reply_is_told() -> None:
    status = parse_status(a_reply())
    assert [one.instance_id for one in status.active_nodes] == ["i-1", "i-4"]
    assert [one.instance_id for one in status.idle_nodes] == ["i-2"]
    assert [one.instance_id for one in status.failed_nodes] == ["i-3"]
    assert status.active_nodes[0] == NodeInfo(
        node_id="01",
        instance_id="i-1",
        ray_node_type_name="small",
        instance_type_name="",
        ip_address="",
        node_status="RUNNING",
        idle_time_ms=0,
        is_head=False,
        resource_usage=(
            ResourceUsage(resource_name="CPU", total=4.0, used=3.0),
            ResourceUsage(resource_name="memory", total=2e9, used=1e9),
            ResourceUsage(resource_name="node:10.0.0.1", total=1.0, used=0.0),
        ),
        labels={},
        node_activity=("Busy workers on node.",),
    )
    assert status.cluster_resource_usage == (
        ResourceUsage(resource_name="CPU", total=8.0, used=3.0),
        ResourceUsage(resource_name="memory", total=2e9, used=1e9),
    )
    gang = Gang(gang_id="ab", strategy=Strategy.PACK, options=((cpu(2), cpu(2)),))
    assert status.resource_demands == ResourceDemands(
        ray_task_actor_demand=(cpu(1, count=3),),
        placement_group_demand=(gang,),
        cluster_constraint_demand=(Constraint(demands=(cpu(4, count=2),)),),
        infeasible_demand=(cpu(64),),
    )
    launch = {"ray_node_type_name": "gpu", "instance_type_name": "", "count": 1}
    assert status.pending_launches == (LaunchInfo(**launch, request_ts_s=5),)
    assert status.failed_launches == (
        LaunchInfo(**launch, request_ts_s=1, failed_ts_s=2, details="sold out"),
    )
    assert status.pending_nodes == (
        PendingNode(
            instance_id="i-9",
            ray_node_type_name="gpu",
            instance_type_name="",
            ip_address="",
            details="STARTING",
        ),
    )
    assert status.stats == Stats(
        cluster_resource_state_version=12, autoscaler_version=7, session_name="session_x"
    )


@pytest.mark.conformance("UT-4")
def test_the_text_has_a_line_for_everything() -> None:
    assert_view("runtimes/status", str(parse_status(a_reply())))


def test_a_cluster_nobody_scales_has_an_empty_status() -> None:
    status = parse_status(wire.GetClusterStatusReply())
    assert status == ClusterStatus()
    assert str(status) == ""
