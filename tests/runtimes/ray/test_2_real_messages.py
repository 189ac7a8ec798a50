"""Announcer, board and sdk on a real Ray."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from ray.core.generated import autoscaler_pb2 as wire
from tests.ray_clusters import wait_for
from tests.runtimes.ray.conftest import node_of
from tests.runtimes.ray.driver import RayDriver
from tests.support.ray_cluster import AUTH

from muster.autoscaler import sdk
from muster.base.clock import ManualClock
from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, Constraint, Demand, LabelMatch, LabelOperator, NodeType
from muster.cluster.plan import Reason, ResizeNode, ScalingReport, Subject, Verdict
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.kv_board import GangVerdict, MonitorBoard, PublishedVerdicts, read_verdicts
from muster.runtimes.ray.node_requests import GcsResizer
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import StatePublisher, max_resources

pytestmark = pytest.mark.ray


def spec(most: int) -> ClusterSpec:
    kind = NodeType(name="small", resources=Resources.of(CPU=4, GPU=1), max_nodes=most)
    return ClusterSpec(max_nodes=None, node_types=(kind,))


def asked(shape: Resources, count: int, *matches: LabelMatch) -> tuple[Resources, int, frozenset[LabelMatch]]:
    return shape, count, frozenset(matches)


def read_constraint(source: GcsNodeSource) -> set[tuple[Resources, int, frozenset[LabelMatch]]]:
    constraints: tuple[Constraint, ...] = source.read().constraints
    demands: list[Demand] = [demand for constraint in constraints for demand in constraint.demands]
    return {
        asked(demand.shape, demand.count, *(match for one in demand.selectors for match in one))
        for demand in demands
    }


def test_the_cluster_is_told_once_and_again_when_something_changes(
    link: GcsClient, driver: RayDriver
) -> None:
    assert max_resources(link) is None
    link.kv_put("__autoscaler_v2_enabled", b"0", "__autoscaler")
    announcer = StatePublisher(link)
    announcer.publish(spec(3), "10.0.0.1:44217")
    assert link.kv_get("__autoscaler_v2_enabled", "__autoscaler") == b"1"
    assert link.kv_get("AutoscalerMetricsAddress") == b"10.0.0.1:44217"
    assert link.kv_get("extra_usage_tag_autoscaler_version", "usage_stats") == b"v2"
    assert max_resources(link) == {"CPU": 12, "GPU": 3}
    announcer.publish(spec(5), "10.0.0.1:44217")
    told = driver.run(
        "import ray._private.state as state\nanswer = state.state.get_max_resources_from_cluster_config()"
    )
    assert told == {"CPU": 20, "GPU": 5}


def test_the_config_lies_where_rays_own_call_puts_it(link: GcsClient) -> None:
    StatePublisher(link).publish(spec(2))
    ours = link.kv_get("__autoscaler_cluster_config", "__autoscaler")
    assert ours
    link.kv_put("__autoscaler_cluster_config", b"", "__autoscaler")
    link.call("report_cluster_config", ours)
    theirs = link.kv_get("__autoscaler_cluster_config", "__autoscaler")
    assert wire.ClusterConfig.FromString(theirs) == wire.ClusterConfig.FromString(ours)


def test_verdicts_are_written_when_they_change_and_read_by_anybody(link: GcsClient) -> None:
    assert read_verdicts(link) == PublishedVerdicts()
    clock = ManualClock(100.0)
    writer = MonitorBoard(link, clock)
    verdict = Verdict(subject=Subject.GANG, subject_id="ab", reason=Reason.INFEASIBLE, detail="too large")
    gangs = {"ab": GangVerdict(reason="infeasible", detail="too large")}
    writer.write_verdicts([verdict])
    clock.advance(5.0)
    writer.write_verdicts([verdict])
    assert read_verdicts(link) == PublishedVerdicts(at=100.0, gangs=gangs)
    clock.advance(5.0)
    writer.write_verdicts([verdict])
    assert read_verdicts(link) == PublishedVerdicts(at=110.0, gangs=gangs)
    clock.advance(1.0)
    writer.write_verdicts([])
    assert read_verdicts(link) == PublishedVerdicts(at=111.0)
    link.kv_put("verdicts", json.dumps({"at": "never"}).encode(), "__muster")
    assert read_verdicts(link) == PublishedVerdicts()


@pytest.mark.conformance("SDK-1", "SDK-2")
def test_a_wish_replaces_the_last_and_an_empty_one_takes_it_back(
    link: GcsClient, source: GcsNodeSource, driver: RayDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-1, SDK-2; the first in a driver, the others where only RAY_ADDRESS says which cluster."""
    driver.run("from muster.autoscaler.sdk import request_resources; request_resources(num_cpus=3)")
    assert read_constraint(source) == {asked(Resources.of(CPU=1), 3)}
    monkeypatch.setenv("RAY_ADDRESS", link.address)
    for name, value in AUTH.items():
        monkeypatch.setenv(name, value)
    sdk.request_resources(num_cpus=1, bundles=[{"CPU": 1}, {"GPU": 0.5}, {"CPU": 1}])
    assert read_constraint(source) == {asked(Resources.of(CPU=1), 3), asked(Resources.of(GPU=0.5), 1)}
    sdk.request_resources(
        bundles=[{"CPU": 1}, {"CPU": 1}],
        bundle_label_selectors=[{}, {"tier": "in(a, b)", "region": "!us", "zone": "!in(x,y)"}],
    )
    assert read_constraint(source) == {
        asked(Resources.of(CPU=1), 1),
        asked(
            Resources.of(CPU=1),
            1,
            LabelMatch("tier", LabelOperator.IN, ("a", "b")),
            LabelMatch("region", LabelOperator.NOT_IN, ("us",)),
            LabelMatch("zone", LabelOperator.NOT_IN, ("x", "y")),
        ),
    }
    sdk.request_resources()
    assert read_constraint(source) == set()


@pytest.mark.conformance("SDK-9", "SDK-10")
def test_the_status_holds_nodes_demand_and_what_we_told(
    link: GcsClient, source: GcsNodeSource, driver: RayDriver
) -> None:
    """SDK-9, SDK-10, in a driver."""
    version = source.published_version() + 1
    source.publish(version, ScalingReport())
    told = driver.run("""
from muster.autoscaler.sdk import get_cluster_status, request_resources
request_resources(bundles=[{"CPU": 7}])
status = get_cluster_status()
request_resources()
alive = (*status.active_nodes, *status.idle_nodes)
answer = [
    sorted((node.instance_id, node.ray_node_type_name) for node in alive),
    {one.resource_name: one.total for one in status.cluster_resource_usage if one.resource_name == "CPU"},
    [demand.count for made in status.resource_demands.cluster_constraint_demand for demand in made.demands],
    status.stats.autoscaler_version,
    status.stats.session_name,
    str(status),
]
""")
    *facts, text = told
    assert facts == [
        [["head-0", "head"], ["w-1", "small"], ["w-2", "spare"]],
        {"CPU": 5.0},
        [1],
        version,
        link.session_name(),
    ]
    assert "1 x {CPU: 7}, request_resources" in text


@pytest.mark.conformance("IP-12", "IP-16")
def test_a_node_counts_the_size_that_it_is_told(link: GcsClient, source: GcsNodeSource) -> None:
    action = ResizeNode(
        request_id=RequestId("zn"),
        instance_id=InstanceId("w-2"),
        cloud_id=CloudId("w-2"),
        node_id=node_of(source, "w-2").node_id,
        desired=Resources.of(CPU=1),
    )
    resizer = GcsResizer(link)

    for cpus in (3.0, 1.0):
        size = Resources.of(CPU=cpus)
        resizer.resize(replace(action, request_id=RequestId(f"zn-{cpus}"), desired=size))
        wait_for(lambda: node_of(source, "w-2").total.units("CPU"), size.units("CPU").__eq__)
    lost = replace(action, request_id=RequestId("x"), cloud_id=CloudId("x"), node_id=NodeId("ab" * 28))
    resizer.resize(lost)
    (failure,) = wait_for(resizer.poll, len)
    assert (failure.cloud_id, failure.is_of_node) == ("x", True)
    resizer.close()


@pytest.mark.conformance("KI-1", "KI-2", "KI-3")
def test_the_drivers_of_users_are_counted(link: GcsClient, driver: RayDriver) -> None:
    name = driver.run("answer = ray.get_runtime_context().get_job_id()")
    report = GcsNodeSource(link, wants_drivers=lambda: True).read()
    assert report.drivers is not None
    assert name in (report.drivers.names or ())
    assert report.drivers.live >= 1
    assert GcsNodeSource(link).read().drivers is None
