"""GcsNodeSource on a real Ray: nodes, demand, and what `ray status` shows of us."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from tests.ray_clusters import living
from tests.runtimes.ray.conftest import node_of, wait_for
from tests.runtimes.ray.driver import RayDriver

from muster.base.resources import Resources
from muster.cluster.model import (
    Demand,
    Gang,
    LabelMatch,
    LabelOperator,
    NodeStatus,
    RuntimeReport,
    Strategy,
)
from muster.cluster.plan import PendingInstance, PendingRequest, ScalingReport
from muster.cluster.snapshot import FailedLaunch
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

pytestmark = pytest.mark.ray

SHAPES = """
@ray.remote
def task(): return 1
refs = [task.options(num_cpus=64).remote() for _ in range(3)]
refs += [task.options(num_cpus=1, label_selector={"tier": "in(a,b)", "region": "!us"}).remote()]
spot, calm = {"label_selector": {"tier": "spot"}}, {"label_selector": {"tier": "calm"}}
refs += [task.options(num_cpus=2, **spot, fallback_strategy=[calm]).remote()]
@ray.remote(num_cpus=32)
class Actor: pass
actor = Actor.remote()
groups = {}
from ray.util.placement_group import placement_group, remove_placement_group
for strategy in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"):
    groups[strategy] = placement_group([{"CPU": 50}, {"CPU": 60}], strategy=strategy)
groups["labels"] = placement_group(
    [{"CPU": 50}, {"CPU": 60}], strategy="PACK", bundle_label_selector=[{"tier": "small"}, {"tier": "!small"}]
)
answer = {name: group.id.hex() for name, group in groups.items()}
"""
FORGET = """
for group in groups.values(): remove_placement_group(group)
ray.kill(actor)
for ref in refs: ray.cancel(ref, force=True)
del refs, actor, groups
"""


def cpu(size: float, **more: object) -> Demand:
    fields: dict[str, object] = {"name": f"{{CPU: {size:g}}}", **more}
    return Demand(shape=Resources.of(CPU=size), **fields)  # type: ignore[arg-type]


def on(*matches: LabelMatch) -> tuple[tuple[LabelMatch, ...], ...]:
    return (matches,)


@pytest.mark.conformance("SDK-3")
def test_nodes_carry_the_identity_they_were_started_with(source: GcsNodeSource) -> None:
    nodes = living(source)
    assert {key: (node.node_type, node.is_head) for key, node in nodes.items()} == {
        "head-0": ("head", True),
        "w-1": ("small", False),
        "w-2": ("spare", False),
    }
    first = nodes["w-1"]
    assert (first.total.units("CPU"), first.total.units("one")) == (20_000, 10_000)
    assert first.labels == {
        "tier": "small",
        "region": "eu",
        "ray.io/node-id": first.node_id,
        "ray.io/node-group": "small",
    }
    assert first.available == first.total
    assert first.ip


@pytest.mark.conformance("SDK-11")
def test_a_head_of_ours_turns_the_v2_protocol_on(link: GcsClient) -> None:
    assert link.kv_get("__autoscaler_v2_enabled", "__autoscaler") == b"1"
    assert link.session_name().startswith("session_")


@pytest.mark.conformance("SDK-4")
def test_what_waits_is_read_in_all_its_shapes(driver: RayDriver, source: GcsNodeSource) -> None:
    ids = driver.run(SHAPES)
    try:
        tier = LabelMatch("tier", LabelOperator.IN, ("a", "b"))
        region = LabelMatch("region", LabelOperator.NOT_IN, ("us",))
        fallback = [LabelMatch("tier", LabelOperator.IN, (one,)) for one in ("spot", "calm")]

        def complete(report: RuntimeReport) -> bool:
            return len(report.gangs) == 5 and sum(demand.count for demand in report.demands) == 6

        report = wait_for(source.read, complete)
        found = {
            (demand.shape, tuple(frozenset(one) for one in demand.selectors), demand.count)
            for demand in report.demands
        }
        anywhere = (frozenset[LabelMatch](),)
        assert found == {
            (Resources.of(CPU=64), anywhere, 3),
            (Resources.of(CPU=32), anywhere, 1),
            (Resources.of(CPU=1), (frozenset({tier, region}),), 1),
            (Resources.of(CPU=2), tuple(frozenset({one}) for one in fallback), 1),
        }
        gangs = {gang.gang_id: gang for gang in report.gangs}
        for strategy in Strategy:
            group = ids[strategy.value]
            bundles = (cpu(50), cpu(60))
            assert gangs[group] == Gang(gang_id=group, strategy=strategy, options=(bundles,))
        small, other = gangs[ids["labels"]].options[0]
        assert small.selectors == on(LabelMatch("tier", LabelOperator.IN, ("small",)))
        assert other.selectors == on(LabelMatch("tier", LabelOperator.NOT_IN, ("small",)))
    finally:
        driver.run(FORGET)
    wait_for(source.read, lambda report: not report.gangs and not report.demands)


def status_text(environment: dict[str, str], address: str, *flags: str) -> str:
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", *flags, "--address", address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def test_ray_status_shows_what_is_pending_failed_and_waiting_for_ever(
    driver: RayDriver, link: GcsClient, source: GcsNodeSource, environment: dict[str, str]
) -> None:
    driver.run("""
@ray.remote(num_cpus=640)
def huge(): pass
waiting = huge.remote()
""")
    demand = wait_for(source.read, lambda report: report.demands).demands[0]
    failed = FailedLaunch(
        instance_id="i-2",
        node_type="gpu",
        started_at=time.time() - 9,
        failed_at=time.time() - 3,
        reason="no capacity in zone x",
    )
    report = ScalingReport(
        pending_requests=(
            PendingRequest(node_type="big", machine_type="m.big", count=3, requested_at=time.time()),
        ),
        pending_instances=(
            PendingInstance(
                instance_id="i-1", node_type="small", machine_type="m", ip="10.0.0.9", details="starting"
            ),
        ),
        failed_launches=(failed,),
        infeasible_demands=(demand,),
    )
    source.publish(17, report)
    try:
        short = status_text(environment, link.address)
        long = status_text(environment, link.address, "-v")
    finally:
        driver.run("ray.cancel(waiting, force=True); del waiting")
    for text in (short, long):
        assert " big, 3 launching\n" in text
        assert " i-1: small, starting\n" in text
        assert " gpu: LaunchFailed (latest_attempt:" in text
        assert " {'CPU': 640.0}: 1+ pending tasks/actors\n" in text
    assert "no capacity in zone x" in long


def test_a_new_monitor_is_heard_though_its_ledger_starts_below(link: GcsClient) -> None:
    GcsNodeSource(link).publish(40, ScalingReport())
    assert GcsNodeSource(link).published_version() == 40
    later = GcsNodeSource(link)
    request = PendingRequest(node_type="late", machine_type="", count=1, requested_at=1.0)
    later.publish(3, ScalingReport(pending_requests=(request,)))
    assert later.published_version() == 40
    assert b"late" in link.cluster_status()
    later.publish(41, ScalingReport())
    assert later.published_version() == 41
    assert b"late" not in link.cluster_status()


@pytest.mark.conformance("SDK-6", "SDK-7", "SDK-8")
def test_a_node_is_busy_while_it_runs_anything_and_idle_after(
    driver: RayDriver, source: GcsNodeSource
) -> None:
    """SDK-6, SDK-7, SDK-8: a task, a task that waits for another, and one that needs nothing."""
    wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.IDLE)
    driver.run("""
import time
@ray.remote
class Gate:
    def __init__(self): self.is_open = False
    def open(self): self.is_open = True
    def look(self): return self.is_open
gate = Gate.options(num_cpus=0, resources={"node:__internal_head__": 0.01}).remote()
@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.01})
def wait_at(gate):
    while not ray.get(gate.look.remote()): time.sleep(0.1)
@ray.remote
def hold(gate):
    ray.get(wait_at.remote(gate))
def start(**options):
    return hold.options(**options).remote(gate)
""")
    for options in ('num_cpus=1, resources={"one": 1}', 'num_cpus=0, label_selector={"tier": "small"}'):
        driver.run(f"running = start({options})")
        busy = wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.RUNNING)
        assert busy.idle_s == 0.0
        driver.run("ray.get(gate.open.remote()); ray.get(running)")
        idle = wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.IDLE)
        assert idle.idle_s < 60
        driver.run("gate = Gate.options(num_cpus=0, resources={'node:__internal_head__': 0.01}).remote()")
    driver.run("ray.kill(gate); del gate, running")


@pytest.mark.conformance("SDK-5")
def test_nodes_that_hold_a_bundle_carry_the_groups_label(driver: RayDriver, source: GcsNodeSource) -> None:
    group = driver.run("""
from ray.util.placement_group import placement_group, remove_placement_group
group = placement_group([{"one": 1}, {"two": 1}], strategy="SPREAD")
ray.get(group.ready())
answer = group.id.hex()
""")
    try:
        held = wait_for(
            source.read,
            lambda report: sum(f"_PG_{group}" in node.labels for node in report.nodes) == 2,
        )
        assert {node.cloud_id for node in held.nodes if f"_PG_{group}" in node.labels} == {"w-1", "w-2"}
    finally:
        driver.run("remove_placement_group(group)")
    wait_for(source.read, lambda report: not any(f"_PG_{group}" in node.labels for node in report.nodes))
