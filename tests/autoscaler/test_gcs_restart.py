"""The GCS dies and returns with its state from Redis: the same cluster, nothing is launched twice."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest
from tests.autoscaler.kept_cluster import KeptCluster, Redis
from tests.support.ray_cluster import AUTH

from muster.autoscaler.build import MonitorOptions, build_monitor
from muster.autoscaler.connect import HeadAddress
from muster.autoscaler.home import ClusterHome
from muster.base.clock import SystemClock
from muster.cluster.model import NodeStatus
from muster.errors import EngineUnreachable
from muster.providers.process.head import stop_everything
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import max_resources
from muster.stores.ledger.history import open_history

pytestmark = pytest.mark.ray
CLOCK = SystemClock()
PATIENCE_S = 200.0  # Ray may give up on a start, more than once, on a busy computer
AWAY_S = 5.0  # longer than a node may idle
CONFIG = """
cluster_name: kept
provider: {type: process}
head_node_type: head
max_workers: 3
idle_timeout_minutes: 0.05
available_node_types:
  head: {resources: {CPU: 0}}
  worker: {resources: {CPU: 1}, max_workers: 3}
"""
TASKS = """
import sys, time, os, ray
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1)
def hold(gate):
    while not os.path.exists(gate):
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()

refs = []
for line in sys.stdin:
    if line == "more\\n":
        refs.append(hold.remote(sys.argv[2]))
    else:
        print(" ".join(ray.get(refs, timeout=80)), flush=True)
"""


class Tasks:
    """A driver that outlives its GCS."""

    def __init__(self, address, gate):
        self._process = subprocess.Popen(
            [sys.executable, "-c", TASKS, address, str(gate)],
            env={**os.environ, **AUTH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def more(self):
        self._process.stdin.write("more\n")
        self._process.stdin.flush()

    def nodes(self):
        self._process.stdin.write("nodes\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def close(self):
        self._process.kill()
        self._process.communicate()


class Scene:
    """A monitor in a thread, and what is seen of its cluster."""

    def __init__(self, cluster, folder):
        self.cluster, self.home = cluster, ClusterHome(folder / "home")
        (folder / "cluster.yaml").write_text(CONFIG, encoding="utf-8")
        self.link = GcsClient(cluster.address, AUTH)
        self.source = GcsNodeSource(self.link)
        self.failure = None
        self._stop = threading.Event()
        reach = HeadAddress(cluster.address, AUTH)
        self._options = MonitorOptions(folder / "cluster.yaml", self.home, reach, metrics_port=0)
        self._loop = threading.Thread(target=self._run)
        self._loop.start()
        self.wait_for(self.home.status.exists, "the first status")

    def _run(self):  # a ledger belongs to the thread that opened it
        try:
            build_monitor(self._options, os.environ, self._stop).run(self._stop)
        except Exception as error:
            self.failure = error

    def close(self):
        self._stop.set()
        self._loop.join()
        stop_everything(self.home.nodes, CLOCK)

    def wait_for(self, true, what):
        give_up = CLOCK.monotonic() + PATIENCE_S
        while not true():
            assert self.failure is None, self.failure
            assert CLOCK.monotonic() < give_up, f"not within {PATIENCE_S:.0f} s: {what}"
            CLOCK.sleep(0.1)

    def stories(self):
        """What became of each worker, the oldest first."""
        with open_history(self.home.ledger) as history:
            workers = [record for record in history.find() if record.node_type == "worker"]
        return [
            [change.state.name for change in record.history]
            for record in sorted(workers, key=lambda record: record.history[0].at)
        ]

    def busy(self):
        """The workers whose processor is taken."""
        return [node_id for node_id, node in (self.workers() or {}).items() if "CPU" not in node.available]

    def workers(self):
        """Those that live, by node id; None while the GCS is away."""
        try:
            report = self.source.read()
        except EngineUnreachable:
            return None
        alive = [node for node in report.nodes if node.status is not NodeStatus.DEAD and not node.is_head]
        return {node.node_id: node for node in alive}


RUNNING = ["QUEUED", "REQUESTED", "ALLOCATED", "RAY_RUNNING"]


@pytest.fixture
def scene(tmp_path):
    before = {key: value for key, value in os.environ.items() if key.startswith("RAY_AUTH")}
    with Redis(tmp_path) as redis, KeptCluster(redis.address) as cluster:
        scene = Scene(cluster, tmp_path)
        try:
            yield scene
        finally:
            scene.close()
            for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
                os.environ.pop(key, None)
            os.environ.update(before)


def test_a_gcs_that_restarts_with_its_state_is_the_same_cluster(scene, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    gate = tmp_path / "gate"
    tasks = Tasks(scene.cluster.address, gate)
    try:
        tasks.more()
        scene.wait_for(lambda: scene.stories() == [RUNNING], "a worker runs")
        (first,) = scene.workers()
        session, limit = scene.link.session_name(), max_resources(scene.link)
        version = scene.source.published_version()

        scene.cluster.kill_gcs()
        scene.wait_for(lambda: scene.workers() is None, "the GCS is away")
        tasks.more()
        CLOCK.sleep(AWAY_S)
        assert scene.stories() == [RUNNING]
        scene.cluster.start_gcs()
        scene.wait_for(lambda: scene.workers() is not None, "the link reaches it again")
        assert (scene.link.generation, scene.link.session_name()) == (1, session)
        assert max_resources(scene.link) == limit
        scene.wait_for(lambda: scene.source.published_version() > version, "it is told of later ticks")

        scene.wait_for(lambda: scene.stories() == [RUNNING] * 2, "a worker for what was asked meanwhile")
        scene.wait_for(lambda: len(scene.busy()) == 2, "both are busy")
        assert first in scene.busy()
        gate.touch()
        assert len(set(tasks.nodes())) == 2
        scene.wait_for(
            lambda: all(story[-1] == "TERMINATED" for story in scene.stories()), "both idle and go"
        )
    finally:
        tasks.close()
    assert [story[:5] for story in scene.stories()] == [[*RUNNING, "RAY_STOP_REQUESTED"]] * 2
    said = [record.getMessage() for record in caplog.records]
    assert said.count("the runtime answers again") == 1
