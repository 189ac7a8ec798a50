"""Our report as Ray's message, and back again (UT-3)."""

from __future__ import annotations

import pytest
from ray.core.generated import autoscaler_pb2 as wire

from muster.base.resources import Resources
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeType,
    Strategy,
)
from muster.cluster.plan import PendingInstance, PendingRequest, ScalingReport
from muster.cluster.snapshot import FailedLaunch
from muster.runtimes.ray.messages import cluster_config, gang_request, scaling_state
from muster.runtimes.ray.parse import parse_gang, parse_infeasible

TIER = ((LabelMatch("tier", LabelOperator.IN, ("a", "b")), LabelMatch("zone", LabelOperator.NOT_IN, ("x",))),)


def cpu(size: float, **more: object) -> Demand:
    fields: dict[str, object] = {"name": f"{{CPU: {size:g}}}", **more}
    return Demand(shape=Resources.of(CPU=size), **fields)  # type: ignore[arg-type]


@pytest.mark.conformance("UT-3")
def test_every_machine_has_an_entry_of_its_own() -> None:
    report = ScalingReport(
        seen_runtime_version=5,
        pending_requests=(
            PendingRequest(node_type="a", machine_type="m.large", count=2, requested_at=1000.9),
            PendingRequest(node_type="b", machine_type="", count=1, requested_at=float("-inf")),
        ),
        pending_instances=(
            PendingInstance(
                instance_id="i-1", node_type="a", machine_type="m", ip="10.0.0.1", details="boots"
            ),
        ),
        failed_launches=(
            FailedLaunch(
                instance_id="i-2",
                node_type="a",
                started_at=1.5,
                failed_at=2.5,
                reason="sold out",
                machine_type="m.large",
            ),
        ),
    )
    pending = {"ray_node_type_name": "a", "instance_type_name": "m.large", "count": 1, "request_ts": 1000}
    assert scaling_state(9, report) == wire.AutoscalingState(
        last_seen_cluster_resource_state_version=5,
        autoscaler_state_version=9,
        pending_instance_requests=[
            wire.PendingInstanceRequest(**pending),
            wire.PendingInstanceRequest(**pending),
            wire.PendingInstanceRequest(ray_node_type_name="b", count=1),
        ],
        pending_instances=[
            wire.PendingInstance(
                instance_id="i-1",
                ray_node_type_name="a",
                instance_type_name="m",
                ip_address="10.0.0.1",
                details="boots",
            )
        ],
        failed_instance_requests=[
            wire.FailedInstanceRequest(
                instance_type_name="m.large",
                ray_node_type_name="a",
                count=1,
                reason="sold out",
                start_ts=1,
                failed_ts=2,
            )
        ],
    )


@pytest.mark.conformance("UT-3")
def test_what_has_no_place_is_read_back_as_it_was_told() -> None:
    gang = Gang(gang_id="ab", strategy=Strategy.STRICT_SPREAD, options=((cpu(1), cpu(2)),))
    selective = cpu(3, selectors=TIER, name="{CPU: 3} on tier in (a, b) and zone not in (x)")
    report = ScalingReport(
        infeasible_demands=(selective, cpu(1, avoid=("job", "x"))),
        infeasible_gangs=(gang,),
        infeasible_constraints=(cpu(8, count=4),),
    )
    told = parse_infeasible(scaling_state(1, report))
    assert told.demands == report.infeasible_demands
    assert told.gangs == (gang,)
    assert told.constraints == (Constraint(demands=(cpu(8, count=4),)),)


def test_a_gang_survives_the_way_there_and_back() -> None:
    for strategy in Strategy:
        gang = Gang(
            gang_id="ab", strategy=strategy, options=((cpu(1), cpu(2)), (cpu(3),)), locality_label="rack"
        )
        assert parse_gang(gang_request(gang)) == gang


def test_the_cluster_may_become_as_large_as_its_limits_allow() -> None:
    spec = ClusterSpec(
        max_nodes=4,
        node_types=(
            NodeType(name="head", resources=Resources.of(CPU=2), min_nodes=1, max_nodes=1),
            NodeType(name="small", resources=Resources.of(CPU=4), min_nodes=2, max_nodes=10),
            NodeType(name="gpu", resources=Resources.of(CPU=8, GPU=2), max_nodes=2),
        ),
    )
    assert cluster_config(spec) == wire.ClusterConfig(
        min_resources={"CPU": 10, "GPU": 0},
        max_resources={"CPU": 24, "GPU": 4},  # two large ones and two small ones
        node_group_configs=[
            wire.NodeGroupConfig(name="head", resources={"CPU": 2}, min_count=1, max_count=1),
            wire.NodeGroupConfig(name="small", resources={"CPU": 4}, min_count=2, max_count=10),
            wire.NodeGroupConfig(name="gpu", resources={"CPU": 8, "GPU": 2}, max_count=2),
        ],
    )


def test_without_a_limit_of_the_cluster_every_type_is_counted_in_full() -> None:
    kind = NodeType(name="a", resources=Resources.of(CPU=0.5), max_nodes=5)
    assert dict(cluster_config(ClusterSpec(max_nodes=None, node_types=(kind,))).max_resources) == {"CPU": 2}
