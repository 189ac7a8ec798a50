"""Two workers beside the plain head for the tests of this directory, and one driver."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.ray_clusters import join, living, wait_for
from tests.runtimes.ray.driver import RayDriver
from tests.support.ray_cluster import AUTH, RayCluster

from muster.cluster.model import NodeReport, NodeStatus
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

__all__ = ["node_of", "wait_for"]


def node_of(source: GcsNodeSource, cloud_id: str) -> NodeReport:
    return next(node for node in source.read().nodes if node.cloud_id == cloud_id)


@pytest.fixture(scope="package")
def cluster(plain_head: RayCluster) -> Iterator[RayCluster]:
    labels = {"tier": "small", "region": "eu"}
    workers = [
        join(plain_head, "w-1", {"CPU": 2, "one": 1}, node_type="small", labels=labels),
        join(plain_head, "w-2", {"CPU": 1, "two": 1}, node_type="spare"),
    ]
    source = GcsNodeSource(GcsClient(plain_head.address, AUTH))
    wait_for(
        lambda: living(source), lambda nodes: all(one.status is NodeStatus.IDLE for one in nodes.values())
    )
    yield plain_head
    for worker in workers:
        worker.kill()


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
