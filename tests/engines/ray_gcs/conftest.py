"""One real cluster for the tests of this directory: a head and two workers, one driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from tests.engines.ray_gcs.driver import RayDriver

from muster.cluster.model import NodeReport, NodeStatus
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.testing.ray_cluster import AUTH, RayCluster

T = TypeVar("T")
PATIENCE_S = 200.0  # Ray may give up on a start, more than once, on a busy computer


def wait_for(look: Callable[[], T], happens: Callable[[T], object]) -> T:
    """The first look that shows it; an early exit, and a generous end."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        seen = look()
        if happens(seen):
            return seen
        assert time.monotonic() < give_up, f"it did not happen in {PATIENCE_S:.0f} s; last seen: {seen}"
        time.sleep(0.1)


def node_of(source: GcsNodeSource, cloud_id: str) -> NodeReport:
    return next(node for node in source.read().nodes if node.cloud_id == cloud_id)


def add_worker(cluster: RayCluster, cloud_id: str, resources: dict[str, float], **more: object) -> None:
    """Returns when it has joined; tried again where Ray gives up because the machine is busy."""
    source = GcsNodeSource(GcsClient(cluster.address, AUTH))
    for _ in range(5):
        worker = cluster.add_worker(cloud_id, resources, **more)  # type: ignore[arg-type]
        while worker.process.poll() is None:
            if any(node.cloud_id == cloud_id for node in source.read().nodes):
                return
            time.sleep(0.2)
        worker.kill()
    raise AssertionError(f"{cloud_id} does not join: {(cluster.temp_dir / f'{cloud_id}.log').read_text()}")


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    with RayCluster() as cluster:
        labels = {"tier": "small", "region": "eu"}
        add_worker(cluster, "w-1", {"CPU": 2, "one": 1}, node_type="small", labels=labels)
        add_worker(cluster, "w-2", {"CPU": 1, "two": 1}, node_type="spare")
        source = GcsNodeSource(GcsClient(cluster.address, AUTH))
        wait_for(source.read, lambda report: all(node.status is NodeStatus.IDLE for node in report.nodes))
        yield cluster


@pytest.fixture(scope="package")
def link(cluster: RayCluster) -> GcsClient:
    return GcsClient(cluster.address, AUTH)


@pytest.fixture(scope="package")
def source(link: GcsClient) -> GcsNodeSource:
    return GcsNodeSource(link)


@pytest.fixture(scope="package")
def environment(cluster: RayCluster) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {**kept, **cluster.environment()}


@pytest.fixture(scope="package")
def driver(environment: dict[str, str]) -> Iterator[RayDriver]:
    driver = RayDriver(environment)
    try:
        yield driver
    finally:
        driver.close()
