"""Token, version and a head that restarts. The last use of the plain head."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from tests.ray_clusters import clear, wait_for
from tests.support.ray_cluster import AUTH, RayCluster, RayNode, free_ports

from muster.cluster.model import ClusterSpec
from muster.cluster.plan import ScalingReport
from muster.errors import EngineMissing, EngineUnreachable
from muster.providers.process.ray_command import NodeIdentity
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import StatePublisher

pytestmark = pytest.mark.ray
CONNECT = """
import sys, json
from muster.runtimes.ray.client import GcsClient
from muster.errors import MusterError
try:
    link = GcsClient(sys.argv[1], json.loads(sys.argv[2]))
    link.connect()
    print("session", link.session_name())
except MusterError as error:
    print(type(error).__name__, error)
"""
# Ray's client would end this process two seconds after the GCS is gone, were it left at its settings.
STAY = """
import sys, json
from muster.runtimes.ray.client import GcsClient
from muster.errors import EngineUnreachable
link = GcsClient(sys.argv[1], json.loads(sys.argv[2]), call_timeout_s=8.0)
link.connect()
print("connected", flush=True)
sys.stdin.readline()
try:
    link._client.get_cluster_resource_state(timeout_s=8.0)
except Exception as error:
    print("alive after", type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def cluster(plain_head: RayCluster) -> RayCluster:
    clear(plain_head)
    return plain_head


def environment(**more: str) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if not key.startswith("RAY_")}, **more}


def connect_with(cluster: RayCluster, auth: dict[str, str], **more: str) -> str:
    command = [sys.executable, "-c", CONNECT, cluster.address, json.dumps(auth)]
    done = subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=90, check=True
    )
    return done.stdout.strip()


def denied(cluster: RayCluster, told: str) -> str:
    return (
        f"EngineDenied the Ray cluster at {cluster.address} does not accept {told}: set RAY_AUTH_MODE=token"
        " and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the token of its head"
    )


def start_again(cluster: RayCluster, head: RayNode) -> None:
    """On the same port of the GCS; the others are fresh, because agents outlive their raylet for a moment.

    Tried again where Ray gives up because the machine is busy.
    """
    arguments = [str(part) for part in head.process.args]  # type: ignore[union-attr]
    for attempt in range(5):
        ports = iter(free_ports(len(arguments)))
        command = [re.sub(r"^(--.+-port)=\d+$", rf"\1={next(ports)}", part) for part in arguments]
        node = cluster._start(command, NodeIdentity(cloud_id="head-0", node_type="head"))
        if cluster._head_has_started(90.0 * (attempt + 1)):
            return
        node.kill()
    said = (cluster.temp_dir / "head-0.log").read_text()
    raise AssertionError(f"the head does not start again; it says:\n{said}")


@pytest.mark.conformance("SDK-12")
def test_only_the_right_token_is_let_in(cluster: RayCluster) -> None:
    """SDK-12. The token may be given, lie in a file, or be in the environment."""
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    assert connect_with(cluster, wrong) == denied(cluster, "the token given")
    assert connect_with(cluster, {"RAY_AUTH_MODE": "disabled"}) == denied(cluster, "a client without it")
    file = cluster.temp_dir / "token"
    file.write_text(AUTH["RAY_AUTH_TOKEN"] + "\n")
    in_file = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    session = connect_with(cluster, AUTH)
    assert session.startswith("session session_")
    assert connect_with(cluster, in_file, RAY_AUTH_TOKEN="0" * 64) == session
    assert connect_with(cluster, {}, **AUTH) == session


def test_a_cluster_of_another_line_than_the_one_here_is_refused(cluster: RayCluster) -> None:
    link = GcsClient(cluster.address, AUTH)
    told = link.kv_get("CLUSTER_METADATA", "cluster")
    assert told is not None
    assert json.loads(told)["ray_version"].startswith("2.60.")
    link.kv_put("CLUSTER_METADATA", json.dumps({"ray_version": "2.9.3"}).encode(), "cluster")
    with pytest.raises(EngineMissing) as caught:
        GcsClient(cluster.address, AUTH).connect()
    assert cluster.address in str(caught.value) and " 2.9.3, " in str(caught.value)
    link.kv_put("CLUSTER_METADATA", told, "cluster")
    GcsClient(cluster.address, AUTH).connect()


def test_a_head_that_restarts_is_found_again_and_told_everything_anew(cluster: RayCluster) -> None:
    link = GcsClient(cluster.address, AUTH, call_timeout_s=5.0)
    source, announcer = GcsNodeSource(link), StatePublisher(link)
    announcer.publish(ClusterSpec())
    source.publish(50, ScalingReport())
    session = link.session_name()
    stays = subprocess.Popen(
        [sys.executable, "-c", STAY, cluster.address, json.dumps(AUTH)],
        env=environment(RAY_gcs_rpc_server_reconnect_timeout_s="2"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with stays:
        try:
            assert stays.stdout is not None
            assert stays.stdout.readline() == "connected\n"
            head = cluster.nodes["head-0"]
            head.kill()
            for _ in range(3):
                with pytest.raises(EngineUnreachable, match=f"GCS.*{cluster.address}"):
                    source.read()
            assert stays.communicate("go\n", timeout=60)[0] == "alive after RpcError\n"
        finally:
            stays.kill()
    start_again(cluster, head)

    def look() -> int:
        try:
            return len(source.read().nodes)
        except EngineUnreachable:  # the port is open before the GCS answers
            return 0

    wait_for(look, lambda count: count == 1)
    assert link.generation == 2
    assert link.session_name() != session
    link.kv_put("__autoscaler_v2_enabled", b"0", "__autoscaler")
    announcer.publish(ClusterSpec())
    assert link.kv_get("__autoscaler_v2_enabled", "__autoscaler") == b"1"
    assert link.kv_get("extra_usage_tag_autoscaler_version", "usage_stats") == b"v2"
    source.publish(51, ScalingReport())
    assert source.published_version() == 51
