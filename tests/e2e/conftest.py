"""One real cluster for all end-to-end tests: `muster up`, one driver, one watch; `muster down` at the end.

Nodes are processes of this computer. The files are numbered: the last ones end the head and the cluster.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.live_cluster import LiveCluster, wait_for
from bench.live_driver import Driver
from bench.live_watch import ClusterSnapshot, ClusterWatch
from tests.support.ray_cluster import AUTH, QUICK, RayDidNotStart

from muster.cluster.states import InstanceState
from muster.stores.ledger.history import open_history

CONFIG = """
cluster_name: e2e
provider: {type: process}
head_node_type: head
max_workers: 8
idle_timeout_minutes: 0.034
upscaling_speed: 10
muster: {monitor: {interval_s: 0.5, max_interval_s: 1.0}}
available_node_types:
  head: {resources: {CPU: 0}}
  small: {resources: {CPU: 1, seat: 1}, min_workers: 0, max_workers: 5}
  big: {resources: {CPU: 2}, max_workers: 1}
  gold: {resources: {CPU: 1}, labels: {tier: gold}, max_workers: 2}
  silver: {resources: {CPU: 1}, labels: {tier: silver}, max_workers: 2}
  second: {resources: {CPU: 1, ranked: 1}, max_workers: 2}
  first: {resources: {CPU: 1, ranked: 1}, priority: 10, max_workers: 2}
"""
LIMITS = {"small": 5, "big": 1, "gold": 2, "silver": 2, "second": 2, "first": 2, "paid": 6, "room": 1}
MAX_WORKERS = 8
IDLE_S = 2.04
WATCH_S = 0.25
DEMANDS = Path(__file__).with_name("demands.py")


class Stage:
    """What a test works with."""

    def __init__(self, cluster: LiveCluster, driver: Driver, watch: ClusterWatch) -> None:
        self.cluster, self.driver, self.watch = cluster, driver, watch
        self._gates: list[Path] = []

    def gate(self) -> Path:
        """A file that tasks wait for; `touch` lets them go."""
        self._gates.append(self.cluster.folder / f"gate-{time.monotonic_ns()}")
        return self._gates[-1]

    def wait_for_nodes(self, **counts: int) -> ClusterSnapshot:
        """Until exactly these workers live."""
        try:
            return wait_for(self.watch.now, lambda snapshot: snapshot.counts() == counts, f"workers {counts}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe monitor said:\n{self.diary()}") from None

    def wait_for_quiet(self) -> ClusterSnapshot:
        return self.wait_for_nodes()

    def stays(self, seconds: float, **counts: int) -> None:
        """Exactly these workers all the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.watch.now().counts() == counts, self.diary()
            time.sleep(WATCH_S)

    def came_up(self) -> int:
        """Workers that ever ran, as the ledger tells; on a busy computer Ray gives up on some before."""
        with open_history(self.cluster.home.ledger) as history:
            return sum(
                record.node_type != "head" and bool(record.entered(InstanceState.RAY_RUNNING))
                for record in history.find()
            )

    def type_of(self, node_id: str) -> str:
        """Also of a node that is gone: from what the watch saw."""
        for snapshot in reversed([*self.watch.snapshots, self.watch.now()]):
            for node in snapshot.report.nodes:
                if node.node_id == node_id:
                    return node.node_type
        raise AssertionError(f"nobody saw node {node_id}")

    def cloud_id_of(self, node_id: str) -> str:
        return next(str(node.cloud_id) for node in self.watch.now().report.nodes if node.node_id == node_id)

    def clear(self) -> None:
        """Whatever a test that failed has left; the last test has lost the driver with the head."""
        self.cluster.edit(CONFIG)
        for gate in self._gates:
            gate.touch()
        with contextlib.suppress(RuntimeError, OSError):
            self.driver.ask("clear")

    def diary(self) -> str:
        return self.cluster.log_tail()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """The same token as every other Ray of this test process: Ray's native code keeps the first."""
    folder, token = tmp_path_factory.mktemp("e2e"), AUTH["RAY_AUTH_TOKEN"]
    cluster = LiveCluster(folder, CONFIG, name="e2e", token=token, settings=QUICK)
    before = {key: value for key, value in os.environ.items() if key.startswith("RAY_")}
    try:
        try:
            cluster.up()
        except RuntimeError as error:
            raise RayDidNotStart("the cluster of `muster up`", str(error)) from error
        yield cluster
    finally:
        cluster.processes.update()
        said = cluster.down()
        for key in [key for key in os.environ if key.startswith("RAY_")]:
            os.environ.pop(key)
        os.environ.update(before)
    assert said.returncode == 0, said.stdout + said.stderr
    left = wait_for(cluster.processes.living, lambda living: not living, "no process is left", 30.0)
    assert (left, len(cluster.processes) > 20) == ({}, True)


@pytest.fixture(scope="package")
def watch(cluster: LiveCluster) -> Iterator[ClusterWatch]:
    watch = ClusterWatch(cluster.address, AUTH, every_s=WATCH_S, processes=cluster.processes)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()


@pytest.fixture(scope="package")
def driver(cluster: LiveCluster, watch: ClusterWatch) -> Iterator[Driver]:
    """Made while there is only the head, so that it is attached to that: workers come and go."""
    driver = Driver(DEMANDS, cluster.environment(), cluster.folder / "driver.log")
    try:
        head = next(node.node_id for node in watch.now().report.nodes if node.is_head)
        assert driver.ask("me") == head
        yield driver
    finally:
        driver.close()


@pytest.fixture
def stage(cluster: LiveCluster, driver: Driver, watch: ClusterWatch) -> Iterator[Stage]:
    """Quiet before; limits and sizes held all the time."""
    stage = Stage(cluster, driver, watch)
    stage.wait_for_quiet()
    began = time.monotonic()
    try:
        yield stage
    finally:
        stage.clear()
    for snapshot in watch.since(began):
        assert len(snapshot.workers) <= MAX_WORKERS
        assert all(count <= LIMITS[name] for name, count in snapshot.counts().items()), snapshot.counts()
