"""From a cloud's notice to a drain on a real Ray: watcher, store, monitor's tick, node, with its deadline."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from tests.cluster.fakes import FakeProvider, FakeSpec
from tests.cluster.worlds import machine
from tests.host.metadata_server import EVENTS, NAME, PREEMPTED, SPOT, MetadataService, metadata_service
from tests.ray_clusters import join, wait_for
from tests.remote.local_runner import LocalRunner
from tests.runtimes.ray.conftest import node_of
from tests.runtimes.ray.driver import RayDriver
from tests.support.builders import cloud_instance, cluster_spec, node_type
from tests.support.ray_cluster import AUTH, RayCluster

from muster.base.clock import SystemClock
from muster.base.ids import CountingIds
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController
from muster.cluster.model import LaunchLimits, NodeKind, NodeStatus, NoticeKind, Offer
from muster.cluster.plan import Drain
from muster.cluster.ports import Ports
from muster.cluster.snapshot import ProviderTraits
from muster.config.schema import ClusterConfig, MusterConfig, NoticesConfig, ProviderConfig
from muster.remote.notices import notices_line
from muster.runtimes.ray.client import GcsClient, host_and_port
from muster.runtimes.ray.kv_board import GcsNoticeBoard
from muster.runtimes.ray.node_requests import GcsDrainer
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.stores.ledger.memory import MemoryInstanceStore

pytestmark = pytest.mark.ray

A, B = Offer(zone="a", market="spot", price_per_hour=1.0), Offer(zone="b", market="spot", price_per_hour=2.0)
SPEC = cluster_spec(
    (node_type("head", {}, max_nodes=1), node_type("noticed", {"CPU": 1, "noticed": 1}, offers=(A, B))),
    head_node_type="head",
    idle_timeout_s=None,
    limits=LaunchLimits(upscaling_speed=10.0),
)
BUSY = """
import time
@ray.remote(num_cpus=1, resources={"noticed": 1}, max_retries=0)
def long():
    time.sleep(600)
running = long.remote()
"""


@pytest.fixture
def services() -> Iterator[dict[str, MetadataService]]:
    with ExitStack() as stack:
        yield {cloud: stack.enter_context(metadata_service()) for cloud in ("aws", "gcp", "azure")}


@pytest.fixture
def watched(cluster: RayCluster, services: dict[str, MetadataService], tmp_path: Path) -> Iterator[None]:
    """A watcher for each cloud, started by its line as on a node; only that of AWS has a node."""
    host, port = host_and_port(cluster.address)
    ray = str(Path(sys.executable).with_name("ray"))
    names = {"aws": "w-notice", "gcp": "not-ours-gcp", "azure": "not-ours-azure"}
    for cloud, service in services.items():
        notices = NoticesConfig(source=cloud, address=service.address)
        config = ClusterConfig(provider=ProviderConfig(type="local"), muster=MusterConfig(notices=notices))
        environment = {**AUTH, "RAY_HEAD_IP": host, "RAY_CLOUD_INSTANCE_ID": names[cloud]}
        line = notices_line(config, port=port, ray=ray)
        asyncio.run(LocalRunner(tmp_path).run(line, environment=environment))
    yield
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(service.address in words for service in services.values()):
            process.kill()


def controller(link: GcsClient, provider: FakeProvider, drainer: GcsDrainer) -> ClusterController:
    clock = SystemClock()
    ports = Ports(
        provider=provider,
        nodes=GcsNodeSource(link),
        drainer=drainer,
        installer=None,
        store=MemoryInstanceStore(clock=clock),
        spec=FakeSpec(current=(SPEC, "")),
        notices=GcsNoticeBoard(link),
    )
    return ClusterController(ports, Ambient(clock=clock, ids=CountingIds(), seed=Seed(1)))


def terminated_at(deadline: float) -> dict[str, str]:
    return {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline))}


def drained_until(link: GcsClient, node_id: str) -> float:
    return link.call("get_draining_nodes")[node_id] / 1000


@pytest.mark.usefixtures("watched")
def test_a_notice_drains_the_node_until_the_deadline_and_replaces_it_in_the_same_tick(
    cluster: RayCluster,
    link: GcsClient,
    source: GcsNodeSource,
    driver: RayDriver,
    services: dict[str, MetadataService],
) -> None:
    worker = join(cluster, "w-notice", {"CPU": 1, "noticed": 1}, node_type="noticed")
    provider = FakeProvider()
    provider.answers["traits"] = ProviderTraits(buys_offers=True)
    provider.machines = {
        "c-head": machine("head", kind=NodeKind.HEAD, node_type="head"),
        "w-notice": cloud_instance("w-notice", node_type="noticed", zone="a", market="spot"),
    }
    drainer = GcsDrainer(link)
    loop = controller(link, provider, drainer)
    try:
        driver.run(BUSY)
        wait_for(lambda: node_of(source, "w-notice"), lambda node: node.status is NodeStatus.RUNNING)
        loop.tick()
        deadline = time.time() + 120
        services["aws"].put(SPOT, terminated_at(deadline))
        services["gcp"].put(PREEMPTED, "TRUE")
        services["azure"].put(NAME, "vm")
        preempt = {"EventId": "1", "EventType": "Preempt", "Resources": ["vm"], "NotBefore": ""}
        services["azure"].put(EVENTS, {"Events": [preempt]})
        board = GcsNoticeBoard(link)
        read = wait_for(lambda: board.read().notices, lambda notices: len(notices) == 3)
        assert {notice.kind for notice in read} == {NoticeKind.INTERRUPTION}
        result = loop.tick()
        assert provider.called("launch") == [(result.plan.actions[-1].request_id, {"noticed": 1}, "b/spot")]
        unknown = {tuple(n.source.split()) for n in result.plan.quarantined if n.source.startswith("notice ")}
        assert unknown == {("notice", "not-ours-gcp"), ("notice", "not-ours-azure")}
        node = wait_for(lambda: node_of(source, "w-notice"), lambda node: node.status is NodeStatus.DRAINING)
        assert abs(drained_until(link, node.node_id) - deadline) < 30
        nearer = time.time() + 60
        services["aws"].put(SPOT, terminated_at(nearer))
        own = {notice.cloud_id: notice for notice in read}["w-notice"]
        wait_for(lambda: board.read().notices, lambda now: own not in now)
        (again,) = [one for one in loop.tick().plan.actions if isinstance(one, Drain)]
        assert (again.node_id, abs(again.deadline_s - 60) < 30) == (node.node_id, True)
        wait_for(lambda: drainer.under_way(again.request_id), lambda is_open: not is_open)
        assert node_of(source, "w-notice").status is NodeStatus.DRAINING
        wait_for(lambda: drained_until(link, node.node_id), lambda at: abs(at - nearer) < 20)
        assert drainer.poll() == ()
    finally:
        drainer.close()
        worker.kill()
        for name in ("w-notice", "not-ours-gcp", "not-ours-azure"):
            link.kv_delete(f"notice/{name}", "__muster")
