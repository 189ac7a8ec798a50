"""The shadow beside Ray's own autoscaler: it says what it would do, and writes nothing into the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml
from bench.peer.scaleup import cluster, document
from tests.ray_clusters import living, wait_for
from tests.support.ray_cluster import AUTH

from muster.cluster.model import NodeStatus
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import (
    AUTOSCALER_SPACE,
    CLUSTER_CONFIG,
    METRICS_ADDRESS,
    USAGE_SPACE,
    USAGE_VERSION,
    V2_FLAG,
)

pytestmark = pytest.mark.ray
TASK = """
import ray, sys
ray.init(address={address!r}, logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1)
def where():
    return ray.get_runtime_context().get_node_id()

print(ray.get(where.remote(), timeout=150))
"""
# Every key that a monitor writes into a cluster that it runs, and where its board and lease are.
WRITTEN = (
    (METRICS_ADDRESS, None),
    (CLUSTER_CONFIG, AUTOSCALER_SPACE),
    (V2_FLAG, AUTOSCALER_SPACE),
    (USAGE_VERSION, USAGE_SPACE),
    ("verdicts", "__muster"),
    ("monitor", "__muster"),
)
# What Ray writes when a driver and a node come.
OF_RAY = (
    b"DASHBOARD_AGENT_ADDR",
    b"library_usage",
    b"extra_usage_tag",
    b"hardware_usage",
    b"RuntimeEnv",
    b"IsolatedExports",
)


def written(link: GcsClient) -> dict[str, bytes | None]:
    return {key: link.kv_get(key, space) for key, space in WRITTEN}


def all_keys(link: GcsClient) -> set[bytes]:
    return set(link.call("internal_kv_keys", b"", None, timeout=10.0))


def test_a_shadow_buys_and_ends_in_its_own_book_while_ray_scales_the_cluster(tmp_path):
    file = tmp_path / "cluster.yaml"
    wishes = document(0, max_workers=1, idle_s=3.0, upscaling_speed=100.0)  # Ray's own waits for ten minutes
    wishes["available_node_types"]["worker"]["price_per_hour"] = 3600.0  # type: ignore[index]
    file.write_text(yaml.safe_dump(wishes), encoding="utf-8")
    with cluster(1, 600.0, 100.0, auth=AUTH) as (address, _):
        link, environment = GcsClient(address, AUTH), {**os.environ, **AUTH, "MUSTER_HOME": str(tmp_path)}
        nodes = GcsNodeSource(link)
        before, keys = written(link), all_keys(link)
        muster = [sys.executable, "-m", "muster.cli.main"]
        shadow = subprocess.Popen(
            [*muster, "monitor", str(file), "--address", address, "--shadow"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            task = [sys.executable, "-c", TASK.format(address=address)]
            ran_on = subprocess.run(task, env=environment, capture_output=True, text=True, check=True)

            def report():
                command = [*muster, "status", "--json"]
                done = subprocess.run(command, env=environment, capture_output=True, check=False)
                return json.loads(done.stdout)["shadow"]

            wait_for(report, lambda summary: summary["ours"]["cost"] < summary["cluster"]["cost"])
            workers = [node for node in living(nodes).values() if not node.is_head]
            draining = set(link.drain_deadlines())
        finally:
            shadow.send_signal(signal.SIGTERM)
            log = shadow.communicate(timeout=60)[0]
        after, new_keys = written(link), all_keys(link) - keys
        summary = report()
    assert shadow.returncode == 0, log
    assert (after, draining) == (before, frozenset())
    assert [key for key in new_keys if not key.startswith(OF_RAY)] == []
    (worker,) = workers  # Ray has launched it and keeps it
    assert worker.node_id == ran_on.stdout.strip()
    assert worker.status is not NodeStatus.DRAINING
    assert (summary["launched"], summary["came"], summary["ended"]) == ({"worker": 1}, 1, {"worker": 1})
    assert (summary["cluster_added"], summary["cluster_removed"]) == ({"worker": 1}, {})
    assert summary["ours"]["cost"] > 0
    assert "shadow: would launch 1 x worker at 3600/h each for 1 x {CPU: 1}" in log
    assert f"shadow: would terminate node {worker.node_id[:12]} of type worker: idle for" in log
    assert "after muster would have asked for them" in log.splitlines()[-2]
