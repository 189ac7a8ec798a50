"""A head that somebody started with `ray start --head`, and a provider of their own: as docs/monitor.md says.

The head names no machine and no type, and first runs Ray's own autoscaler, which the monitor must notice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ray_clusters import wait_for
from tests.support.ray_cluster import AUTH, RayCluster, RayNode

from muster.autoscaler import connect
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import read_status
from muster.base.clock import SystemClock
from muster.cluster.model import NodeKind
from muster.host.processes import identify, is_alive
from muster.providers.process.ray_command import NodeIdentity
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
CLOCK = SystemClock()
FILE = """
cluster_name: byhand
provider:
  type: external
  module: tests.providers.v1.file_provider.FileNodeProvider
  disable_node_updaters: true
  state_dir: {folder}/cloud
head_node_type: chief
max_workers: 2
available_node_types:
  chief: {{resources: {{CPU: 2}}}}
  worker: {{resources: {{CPU: 4}}, min_workers: 1}}
"""


class HandCluster(RayCluster):
    """Only a head: with Ray's monitor, and without what `muster up` gives a head to be known by."""

    def _start(self, command: list[str], identity: NodeIdentity) -> RayNode:
        unnamed = ("RAY_CLOUD_INSTANCE_ID", "RAY_NODE_TYPE_NAME", "RAY_CLOUD_INSTANCE_TYPE_NAME")
        with open(self.temp_dir / f"{identity.cloud_id}.log", "wb") as log:
            process = subprocess.Popen(
                [word for word in command if word != "--no-monitor"],
                env={**{k: v for k, v in os.environ.items() if k not in unnamed}, **AUTH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = self.nodes[identity.cloud_id] = RayNode(process, identity.cloud_id)
        return node


def muster(folder, *words):
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", *words],
        env={**os.environ, **AUTH, "MUSTER_HOME": str(folder), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


def machines(folder):
    try:
        nodes = json.loads((folder / "cloud" / "byhand.json").read_text())["nodes"]
    except (FileNotFoundError, ValueError):  # not there yet, or just being written
        return []
    return [name for name, node in nodes.items() if node["state"] != "terminated"]


def test_a_head_by_hand_is_found_once_rays_own_autoscaler_is_gone(tmp_path, monkeypatch):
    file = tmp_path / "byhand.yaml"
    file.write_text(FILE.format(folder=tmp_path), encoding="utf-8")
    home = ClusterHome.of("byhand", tmp_path / "clusters")
    with HandCluster() as cluster:
        link = GcsClient(cluster.address, AUTH)
        monitor_words = ("monitor", str(file), "--address", cluster.address, "--metrics-port", "0")

        # Ray's own autoscaler is seen as a process, and from another computer by its reports.
        seen = wait_for(lambda: connect.foreign_autoscaler(link, CLOCK.sleep, CLOCK), bool)
        pid = int(seen.split()[1])
        refused = muster(tmp_path, *monitor_words, "--once")
        said = refused.communicate(timeout=200)[0]
        assert refused.returncode == 2
        assert f"Ray's own autoscaler runs the cluster at {cluster.address} (process {pid} of" in said
        wait_for(lambda: link.kv_get("__autoscaling_status"), bool)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(connect, "ray_monitor", lambda address: (None, False))
            assert connect.foreign_autoscaler(link, CLOCK.sleep, CLOCK).startswith("it has just reported")
        mark = identify(pid)
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: is_alive(mark), lambda alive: not alive)

        # The head is taken as the one of the file, and the provider is asked for what the file wants.
        monitor = muster(tmp_path, *monitor_words)
        try:
            wait_for(lambda: machines(tmp_path), bool)
            status = wait_for(lambda: read_status(home), lambda found: found is not None)
        finally:
            monitor.kill()
            log = monitor.communicate()[0]
        (head,) = [i for i in status.instances if i.kind is NodeKind.HEAD]
        (node,) = GcsNodeSource(link).read().nodes
        assert (head.state.name, head.node_type, head.node_id) == ("RAY_RUNNING", "chief", node.node_id), log
        assert (node.cloud_id, node.node_type, node.is_head) == (None, "", True)

        # The monitor was killed: what it launched is ended all the same, and the head stays.
        down = muster(tmp_path, "down", "byhand", "-y")
        said = down.communicate(timeout=200)[0]
        assert (down.returncode, machines(tmp_path)) == (0, []), said
        assert "byhand is down: stopped 1 worker" in said
        assert cluster.nodes["head-0"].process.poll() is None
