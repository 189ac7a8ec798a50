"""Nodes of a real Ray on this computer: they join, outlive their owner, are missed when dead; none stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.host.metadata_server import SPOT, MetadataService, metadata_service
from tests.providers.process.stand_in import CLOCK, until
from tests.support.ray_cluster import AUTH

from muster.base.ids import RandomIds, RequestId
from muster.cluster.model import NodeKind
from muster.config.schema import ClusterConfig, MusterConfig, NoticesConfig, ProviderConfig
from muster.config.to_spec import NodeLaunch
from muster.host.node_notices import ADDRESS_VARIABLE, PREFIX, SPACE
from muster.host.processes import ProcessIdentity, find, identify, is_alive, table, was_started_with
from muster.providers.kind import ProviderContext
from muster.providers.process.head import stop_everything, token_file
from muster.providers.process.launch_queue import ray_worker
from muster.providers.process.provider import ProcessProvider
from muster.providers.process.records import NodeDirectory
from muster.remote.notices import notices_line
from muster.runtimes.ray.native import set_up

pytestmark = pytest.mark.ray
JOINED_S = 100.0
OWNER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.providers.process.test_ray_nodes import create_worker, provider_of
from muster.cluster.model import NodeKind
provider = provider_of(Path(sys.argv[2]), sys.argv[3])
while True:  # as an autoscaler: on a busy computer Ray may give up on a start
    for _ in range(2 - len(provider.machines(NodeKind.WORKER))):
        create_worker(provider)
    time.sleep(0.2)
"""
DRIVER = """
import os, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
# Ray believes in a killed raylet for some seconds: name the node.
@ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(sys.argv[1], soft=False))
class Actor:
    def who(self):
        return os.getpid(), os.getpgid(0)
actor = Actor.remote()
print("actor", *ray.get(actor.who.remote()), flush=True)
sys.stdin.readline()
os._exit(0)
"""


@dataclass(frozen=True)
class Cluster:
    home: Path
    address: str
    nodes: tuple[str, ...]
    before: dict[str, ProcessIdentity | None]  # their processes when their owner was killed
    provider: ProcessProvider
    metadata: MetadataService  # of all nodes, at the address that a variable gives

    @property
    def directory(self) -> NodeDirectory:
        return NodeDirectory(self.home / "nodes")

    def registered(self) -> dict[str, Any]:
        """What GCS knows of its nodes that are alive, by cloud id."""
        return registered(self.home, self.address)


def auth_of(home: Path) -> dict[str, str]:
    return token_file(home / "auth_token")


def provider_of(home: Path, address: str) -> ProcessProvider:
    surroundings = ProviderContext(
        cluster_name="c",
        home=home,
        address=address,
        clock=CLOCK,
        ids=RandomIds(),
        auth=auth_of(home),
        environment=dict(os.environ),
    )
    config = ClusterConfig(
        provider=ProviderConfig(type="process"), muster=MusterConfig(notices=NoticesConfig(source="aws"))
    )
    watcher = notices_line(config, address=address, ray=str(Path(sys.executable).with_name("ray")))
    return ProcessProvider(surroundings, lambda: LAUNCHES, program=ray_worker(address, lambda: watcher))


LAUNCHES = {
    "small": NodeLaunch(
        node_type="small", resources={"CPU": 1, "memory": 3e8, "mark": 2}, labels={"tier": "blue"}
    )
}


def create_worker(provider: ProcessProvider) -> None:
    provider.launch(RequestId(RandomIds().fresh("r")), {"small": 1})


@cache
def client(address: str) -> Any:
    return set_up(AUTH).GcsClient(address=address)  # whoever imported Ray first, with whatever environment


def registered(home: Path, address: str) -> dict[str, Any]:
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    found = client(address).get_all_node_info(timeout=60).values()
    ours = {record.cloud_id for record in NodeDirectory(home / "nodes").records()}
    alive = (one for one in found if one.state == GcsNodeInfo.GcsNodeState.ALIVE)
    return {one.instance_id: one for one in alive if one.instance_id in ours}


@pytest.fixture(scope="module")
def cluster(plain_head, tmp_path_factory):
    """Two workers whose owner has been killed, and a new provider over the same directory."""
    home = tmp_path_factory.mktemp("cluster")
    (home / "auth_token").write_text(AUTH["RAY_AUTH_TOKEN"])  # Ray keeps the first token of a process
    before = dict(os.environ)
    os.environ.update(AUTH)
    services = ExitStack()
    metadata = services.enter_context(metadata_service())
    os.environ[ADDRESS_VARIABLE] = metadata.address_of_each
    try:
        nodes = joined_and_abandoned(home, plain_head.address)
        marks = {one: NodeDirectory(home / "nodes").find(one).process for one in nodes}
        provider = provider_of(home, plain_head.address)
        yield Cluster(home, plain_head.address, nodes, marks, provider, metadata)
        provider.close()
    finally:
        stop_everything(home / "nodes", CLOCK)
        services.close()
        os.environ.clear()
        os.environ.update(before)


def joined_and_abandoned(home: Path, address: str) -> tuple[str, ...]:
    root = str(Path(__file__).parents[3])
    owner = subprocess.Popen([sys.executable, "-c", OWNER, root, str(home), address])
    try:
        joined = until(lambda: len(registered(home, address)) == 2, JOINED_S, pause_s=0.2)
        assert joined, [file.read_text()[-500:] for file in (home / "nodes").glob("*.log")]
    finally:
        owner.kill()
        owner.wait()
    return tuple(sorted(registered(home, address)))


def left_of(cloud_id: str) -> list[str]:
    entry = f"RAY_CLOUD_INSTANCE_ID={cloud_id}"
    return [one.name for one in table() if one.is_alive and was_started_with(one.pid, entry)]


def test_workers_join_with_their_name_type_labels_and_resources(cluster) -> None:
    known = cluster.registered()
    assert set(known) == set(cluster.nodes)
    for node in cluster.nodes:
        info = known[node]
        wanted = {"CPU": 1.0, "memory": 3e8, "mark": 2.0, "object_store_memory": 1e8}
        offered = {name: info.resources_total[name] for name in wanted}
        assert (info.node_type_name, info.labels["tier"], offered) == ("small", "blue", wanted)
        record = cluster.directory.find(node)
        assert (info.temp_dir, info.node_id.hex()) == (record.temp_dir, record.ray_node_id)


def test_workers_outlive_a_killed_owner_and_are_taken_over(cluster) -> None:
    listed = {one.node_id for one in cluster.provider.machines(NodeKind.WORKER)}
    now = {node: cluster.directory.find(node).process for node in cluster.nodes}
    assert (set(cluster.nodes) <= listed, now) == (True, cluster.before)
    assert all(cluster.provider.answers(node) for node in cluster.nodes)
    assert {find(mark.pid).parent for mark in now.values()} != {os.getpid()}


def test_what_the_cloud_announces_about_a_node_reaches_the_head_also_after_its_owner_died(cluster) -> None:
    """The watcher reads the service at the variable's address, and tells the GCS with Ray and its token."""
    node = cluster.nodes[1]
    cluster.metadata.put(SPOT, {"action": "terminate", "time": "2017-09-18T08:22:00Z"}, machine=node)
    key = f"{PREFIX}{node}".encode()
    found = lambda: client(cluster.address).internal_kv_get(key, SPACE.encode(), timeout=60)  # noqa: E731
    try:
        assert until(found, 100.0, pause_s=0.2)
        notice = json.loads(found())
        assert (notice["cloud_id"], notice["source"]) == (node, "aws: spot terminate")
    finally:
        cluster.metadata.put(SPOT, None, machine=node)
        client(cluster.address).internal_kv_del(key, False, SPACE.encode(), timeout=60)


def test_a_node_whose_raylet_is_killed_is_missed_and_cleaned_up(cluster) -> None:
    node = cluster.nodes[0]
    assert until(lambda: cluster.provider.list_instances() and cluster.directory.find(node).main_process)
    os.kill(cluster.directory.find(node).main_process.pid, signal.SIGKILL)
    assert until(lambda: node not in cluster.provider.list_instances())
    assert until(lambda: cluster.directory.find(node).ended_at is not None)
    assert (left_of(node), Path(cluster.directory.find(node).temp_dir).exists()) == ([], False)


def test_a_terminated_node_leaves_no_process_not_even_rays_workers(cluster) -> None:
    node = cluster.nodes[1]
    command = [sys.executable, "-c", DRIVER, cluster.directory.find(node).ray_node_id]
    env = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        try:
            said = next(line for line in driver.stdout if line.startswith(b"actor"))  # Ray talks, too
            actor, group = (int(word) for word in said.split()[1:])
            worker, leader = find(actor), cluster.directory.find(node).process.pid
            assert (worker.session, group != leader) == (leader, True)
            mark = identify(actor)
            cluster.provider.terminate_machines([node])
            assert node not in cluster.provider.list_instances()
            assert until(lambda: cluster.directory.find(node).ended_at is not None)
            assert until(lambda: node not in cluster.registered(), pause_s=0.2)
        finally:
            driver.kill()
    assert (is_alive(mark), left_of(node)) == (False, [])  # init may not have reaped it yet


def test_in_the_end_nothing_is_left(cluster) -> None:
    cluster.provider.close()
    records = cluster.directory.records()
    stopped = stop_everything(cluster.home / "nodes", CLOCK)
    assert dict(stopped.left) == {}
    assert [left_of(one.cloud_id) for one in records] == [[] for _ in records]
    assert not any(is_alive(one.process) for one in records)
    assert not Path(stopped.temp_dir).exists()
