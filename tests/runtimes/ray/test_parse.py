"""Ray's messages as our values: built messages, no cluster (UT-1, UT-2)."""

from __future__ import annotations

import math

import pytest
from ray.core.generated import autoscaler_pb2 as wire
from ray.core.generated import common_pb2
from tests.mistakes.views import assert_line

from muster.base.resources import EMPTY, Resources
from muster.cluster.model import (
    Constraint,
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    Strategy,
)
from muster.cluster.planner.utilization.grouping import gang_requests
from muster.runtimes.ray.parse import Unreadable, parse_gang, parse_node, parse_state

GROUP = "ab" * 18


def asked(cpus: float = 1, *selectors: common_pb2.LabelSelector) -> wire.ResourceRequest:
    return wire.ResourceRequest(resources_bundle={"CPU": cpus}, label_selectors=selectors)


def selector(*conditions: tuple[str, int, list[str]]) -> common_pb2.LabelSelector:
    made = [
        common_pb2.LabelSelectorConstraint(label_key=key, operator=operator, label_values=values)
        for key, operator, values in conditions
    ]
    return common_pb2.LabelSelector(label_constraints=made)


def together(cpus: float, group: str = GROUP) -> wire.ResourceRequest:
    request = asked(cpus)
    request.placement_constraints.add().affinity.label_name = f"_PG_{group}"
    return request


def apart(cpus: float, label: str = f"_PG_{GROUP}", value: str = "") -> wire.ResourceRequest:
    request = asked(cpus)
    constraint = request.placement_constraints.add().anti_affinity
    constraint.label_name, constraint.label_value = label, value
    return request


def cpu(size: float, **more: object) -> Demand:
    fields: dict[str, object] = {"name": f"{{CPU: {size:g}}}", **more}
    return Demand(shape=Resources.of(CPU=size), **fields)  # type: ignore[arg-type]


@pytest.mark.conformance("UT-2")
def test_a_whole_state_becomes_one_report() -> None:
    state = wire.ClusterResourceState(
        cluster_resource_state_version=7,
        node_states=[wire.NodeState(node_id=b"\x01\x02", status=wire.RUNNING)],
        pending_resource_requests=[wire.ResourceRequestByCount(request=asked(2, selector()), count=5)],
        pending_gang_resource_requests=[
            wire.GangResourceRequest(details=f"{GROUP}:PACK|PENDING", requests=[asked(), asked(3)])
        ],
        cluster_resource_constraints=[
            wire.ClusterResourceConstraint(
                resource_requests=[wire.ResourceRequestByCount(request=asked(4), count=2)]
            )
        ],
    )
    assert parse_state(state) == RuntimeReport(
        version=7,
        nodes=(NodeReport(node_id="0102", status=NodeStatus.RUNNING),),
        demands=(cpu(2, count=5, selectors=((),)),),
        gangs=(Gang(gang_id=GROUP, strategy=Strategy.PACK, options=((cpu(1), cpu(3)),)),),
        constraints=(Constraint(demands=(cpu(4, count=2),)),),
    )


@pytest.mark.conformance("UT-2")
def test_a_node_is_told_with_everything_ray_knows_of_it() -> None:
    node = wire.NodeState(
        node_id=b"\xff\x00",
        instance_id="i-1",
        ray_node_type_name="small",
        status=wire.IDLE,
        total_resources={"CPU": 4, "node:__internal_head__": 1},
        available_resources={"CPU": 1.5, "node:__internal_head__": 1},
        labels={"tier": "a", "zone": "x"},
        dynamic_labels={"tier": "b", f"_PG_{GROUP}": ""},
        idle_duration_ms=2500,
        node_ip_address="10.0.0.1",
    )
    assert parse_node(node) == NodeReport(
        node_id="ff00",
        cloud_id="i-1",
        node_type="small",
        status=NodeStatus.IDLE,
        is_head=True,
        total=Resources.of({"CPU": 4, "node:__internal_head__": 1}),
        available=Resources.of({"CPU": 1.5, "node:__internal_head__": 1}),
        labels={"tier": "b", "zone": "x", f"_PG_{GROUP}": ""},
        idle_s=2.5,
        ip="10.0.0.1",
    )


@pytest.mark.parametrize("status", list(NodeStatus))
def test_every_status_keeps_its_meaning(status: NodeStatus) -> None:
    assert parse_node(wire.NodeState(node_id=b"\x01", status=status.value)).status is status


def test_a_status_newer_than_ours_is_unspecified() -> None:
    node = wire.NodeState(node_id=b"\x01")
    node.ParseFromString(node.SerializeToString() + b"\x40\x63")  # field 8 (status) = 99
    assert parse_node(node).status is NodeStatus.UNSPECIFIED


def test_a_dead_node_without_identity_is_still_listed() -> None:
    node = parse_node(wire.NodeState(node_id=b"\x01", status=wire.DEAD))
    assert node == NodeReport(node_id="01", status=NodeStatus.DEAD, total=EMPTY, available=EMPTY)


def test_a_cpu_that_was_lent_out_twice_is_none_free() -> None:
    node = wire.NodeState(node_id=b"\x01", total_resources={"CPU": 1}, available_resources={"CPU": -1.0})
    assert parse_node(node).available == Resources.of(CPU=0)


def test_a_node_with_senseless_sizes_keeps_its_name_only() -> None:
    node = wire.NodeState(
        node_id=b"\x01", instance_id="i-1", status=wire.RUNNING, total_resources={"CPU": math.nan}
    )
    assert parse_node(node) == NodeReport(node_id="01", cloud_id="i-1", status=NodeStatus.UNSPECIFIED)


def test_a_senseless_demand_does_not_hide_the_others() -> None:
    bad = wire.ResourceRequest(resources_bundle={"CPU": math.inf})
    rows = [wire.ResourceRequestByCount(request=one, count=1) for one in (asked(1), bad, asked(2))]
    first, second, third = parse_state(wire.ClusterResourceState(pending_resource_requests=rows)).demands
    assert (first, third) == (cpu(1), cpu(2))
    assert isinstance(second, Unreadable)
    assert_line("runtimes", "demand of an infinite amount", second.why)


def test_what_waits_inside_a_placement_group_is_not_told_beside_the_group() -> None:
    inside = {f"CPU_group_0_{GROUP}": 1.0, f"CPU_group_{GROUP}": 1.0, f"bundle_group_{GROUP}": 0.001}
    rows = [
        wire.ResourceRequestByCount(request=wire.ResourceRequest(resources_bundle=inside), count=3),
        wire.ResourceRequestByCount(
            request=wire.ResourceRequest(resources_bundle={"my_group_a": 1}), count=1
        ),
    ]
    report = parse_state(wire.ClusterResourceState(pending_resource_requests=rows))
    assert [(demand.shape, demand.count) for demand in report.demands] == [(Resources.of(my_group_a=1), 1)]


def test_selectors_keep_their_order_and_operators() -> None:
    request = asked(1, selector(("tier", 1, ["b", "a"]), ("region", 2, ["us"])), selector())
    row = wire.ResourceRequestByCount(request=request, count=1)
    (demand,) = parse_state(wire.ClusterResourceState(pending_resource_requests=[row])).demands
    assert demand.selectors == (
        (
            LabelMatch("tier", LabelOperator.IN, ("a", "b")),
            LabelMatch("region", LabelOperator.NOT_IN, ("us",)),
        ),
        (),
    )
    assert_line("runtimes", "demand with selectors", demand.name)


def test_an_operator_newer_than_ours_holds_nowhere() -> None:
    row = wire.ResourceRequestByCount(request=asked(1, selector(("tier", 0, ["a"]))), count=1)
    (demand,) = parse_state(wire.ClusterResourceState(pending_resource_requests=[row])).demands
    assert demand.selectors == ((LabelMatch("tier", LabelOperator.IN, ()),),)


def test_a_demand_that_avoids_a_label_says_so() -> None:
    row = wire.ResourceRequestByCount(request=apart(1, "job", "x"), count=2)
    (demand,) = parse_state(wire.ClusterResourceState(pending_resource_requests=[row])).demands
    assert demand == cpu(1, count=2, avoid=("job", "x"))


def test_bundle_selectors_are_the_alternatives_in_order() -> None:
    fast = selector(("tier", 1, ["fast"]))
    gang = parse_gang(
        wire.GangResourceRequest(
            details=f"{GROUP}:SPREAD|RESCHEDULING",
            requests=[asked(9)],
            bundle_selectors=[
                wire.BundleSelector(resource_requests=[asked(1, fast), asked(2)]),
                wire.BundleSelector(resource_requests=[asked(1), asked(2)]),
            ],
        )
    )
    on_fast = cpu(
        1, selectors=((LabelMatch("tier", LabelOperator.IN, ("fast",)),),), name="{CPU: 1} on tier in (fast)"
    )
    assert gang == Gang(
        gang_id=GROUP, strategy=Strategy.SPREAD, options=((on_fast, cpu(2)), (cpu(1), cpu(2)))
    )


@pytest.mark.parametrize(
    ("requests", "strategy"),
    [
        ([together(1), together(2)], Strategy.STRICT_PACK),
        ([apart(1), apart(2)], Strategy.STRICT_SPREAD),
    ],
)
def test_without_details_the_constraints_tell_group_and_strategy(
    requests: list[wire.ResourceRequest], strategy: Strategy
) -> None:
    assert parse_gang(wire.GangResourceRequest(requests=requests)) == Gang(
        gang_id=GROUP, strategy=strategy, options=((cpu(1), cpu(2)),)
    )


def test_a_gang_without_anything_but_bundles_is_packed() -> None:
    gang = parse_gang(wire.GangResourceRequest(requests=[asked()], details="what is this"))
    assert gang == Gang(gang_id="what is this", strategy=Strategy.PACK, options=((cpu(1),),))


def test_bundles_that_another_label_keeps_apart_stay_so() -> None:
    gang = parse_gang(wire.GangResourceRequest(requests=[apart(1, "rack", "7")], details=f"{GROUP}:PACK|X"))
    assert gang.options == ((cpu(1, avoid=("rack", "7")),),)


def test_locality_names_its_label_and_narrows_every_bundle() -> None:
    option = wire.BundleSelector(resource_requests=[asked(1), asked(2, selector(("tier", 1, ["a"])))])
    option.locality_requirement.locality_constraint.label_name = "rack"
    option.locality_requirement.label_selector.CopyFrom(selector(("region", 1, ["eu"])))
    gang = parse_gang(wire.GangResourceRequest(details=f"{GROUP}:PACK|PENDING", bundle_selectors=[option]))
    region = LabelMatch("region", LabelOperator.IN, ("eu",))
    assert gang.locality_label == "rack"
    assert [demand.selectors for demand in gang.options[0]] == [
        ((region,),),
        ((LabelMatch("tier", LabelOperator.IN, ("a",)), region),),
    ]


@pytest.mark.conformance("UT-1")
def test_bundles_that_must_share_a_node_are_one_request_per_selector() -> None:
    """UT-1: equal affinity and selector are added up; another selector stays apart."""
    fast, slow = selector(("tier", 1, ["fast"])), selector(("tier", 1, ["slow"]))
    requests = [together(1), together(2), together(4), together(8)]
    for request, one in zip(requests, (fast, slow, fast, slow), strict=True):
        request.label_selectors.append(one)
    gang = parse_gang(wire.GangResourceRequest(details=f"{GROUP}:STRICT_PACK|PENDING", requests=requests))
    asked_for = gang_requests(0, gang, gang.options[0], None)
    assert [(one.shape, one.bundles) for one in asked_for] == [
        (Resources.of(CPU=5), 2),
        (Resources.of(CPU=10), 2),
    ]


@pytest.mark.conformance("KI-1", "KI-2", "KI-3")
def test_drivers_of_users_count_and_those_of_ray_itself_do_not():
    from muster.cluster.model import DriverReport
    from muster.runtimes.ray.client import JobRow
    from muster.runtimes.ray.node_source import drivers_of

    internal = JobRow("_ray_internal_dashboard", is_dead=False, ended_at=0.0)
    ended = JobRow("work", is_dead=True, ended_at=12.5)
    works = JobRow("", is_dead=False, ended_at=0.0, name="02000000")
    assert drivers_of([]) == DriverReport(names=())
    assert drivers_of([internal, ended]) == DriverReport(last_end=12.5, names=())
    assert drivers_of([internal, ended, works]) == DriverReport(live=1, last_end=12.5, names=("02000000",))
