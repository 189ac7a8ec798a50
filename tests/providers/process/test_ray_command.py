"""The command lines and environments of Ray's nodes, as a whole."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.providers.process.ray_command import (
    NodeIdentity,
    NodePorts,
    NodeSize,
    head_command,
    new_ray_node_id,
    node_environment,
    session_name,
    worker_command,
    write_agent_port,
)

START = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
PORTS = NodePorts(agent_http=1, agent_grpc=2, metrics=3, gcs=4, client=5, runtime_env=6)
PORT_FLAGS = [
    "--dashboard-agent-listen-port=1",
    "--dashboard-agent-grpc-port=2",
    "--metrics-export-port=3",
    "--runtime-env-agent-port=6",
]


def test_a_worker_is_given_everything_that_ray_would_guess() -> None:
    resources = {"CPU": 2.0, "GPU": 1.0, "memory": 3e9, "object_store_memory": 8e7, "x": 0.5}
    size = NodeSize(resources=resources, labels={"tier": "a", "zone": "b"})
    assert worker_command(size, PORTS, "127.0.0.1:6399", Path("/tmp/mr-1/node-2")) == [
        *START,
        "--num-cpus=2",
        "--num-gpus=1",
        "--memory=3000000000",
        "--object-store-memory=80000000",
        *PORT_FLAGS,
        '--resources={"x": 0.5}',
        "--labels=tier=a,zone=b",
        "--address=127.0.0.1:6399",
        "--temp-dir=/tmp/mr-1/node-2",
    ]


def test_a_head_has_no_autoscaler_of_rays_own() -> None:
    assert head_command(NodeSize(resources={}), PORTS, Path("/tmp/mr-1")) == [
        *START,
        "--num-cpus=0",
        "--num-gpus=0",
        "--object-store-memory=100000000",
        *PORT_FLAGS,
        "--head",
        "--no-monitor",
        "--include-dashboard=false",
        "--node-ip-address=127.0.0.1",
        "--port=4",
        "--ray-client-server-port=5",
        "--temp-dir=/tmp/mr-1",
    ]


def test_a_node_takes_identity_and_token_from_us_and_no_cluster_from_its_parent() -> None:
    inherited = {"PATH": "/bin", "RAY_ADDRESS": "elsewhere", "RAY_AUTH_TOKEN": "old", "RAY_AUTH_MODE": "x"}
    inherited["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = "our parent's"
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/secret"}
    identity = NodeIdentity(cloud_id="node-1", node_type="small", machine_type="laptop", ray_node_id="ab")
    assert node_environment(inherited, identity, auth) == {
        "PATH": "/bin",
        **auth,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "ab",
        "RAY_gcs_pull_resource_loads_period_milliseconds": "200",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": "node-1",
        "RAY_NODE_TYPE_NAME": "small",
        "RAY_CLOUD_INSTANCE_TYPE_NAME": "laptop",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "100000",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    }


def test_without_a_name_of_ours_ray_chooses_the_id() -> None:
    inherited = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": "our parent's"}
    made = node_environment(inherited, NodeIdentity(cloud_id="node-1", node_type="small"), {})
    assert "RAY_OVERRIDE_NODE_ID_FOR_TESTING" not in made


def test_how_often_demand_is_collected_is_the_users_where_it_is_set():
    name = "RAY_gcs_pull_resource_loads_period_milliseconds"
    identity = NodeIdentity(cloud_id="node-1", node_type="small")
    assert node_environment({name: "1000"}, identity, {})[name] == "1000"


def test_a_session_has_a_name_once_its_head_has_begun(tmp_path) -> None:
    before = session_name(tmp_path)
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_7")
    assert (before, session_name(tmp_path)) == (None, "session_7")


def test_the_port_is_written_once_and_what_the_agent_wrote_stays(tmp_path) -> None:
    node, session = new_ray_node_id(), tmp_path / "session_7"
    write_agent_port(session, node, 4711)
    write_agent_port(session, node, 4712)
    assert {file.name: file.read_text() for file in session.iterdir()} == {
        f"dashboard_agent_listen_port_{node}": "4711"
    }
    assert (len(node), int(node, 16) > 0) == (56, True)
