"""Check that a program that imports Ray's own SDK reaches our autoscaler, without a change."""

from __future__ import annotations

import os

import pytest
from tests.runtimes.ray.driver import RayDriver
from tests.support.builders import node_type
from tests.support.ray_cluster import AUTH

from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, Demand
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import StatePublisher

pytestmark = pytest.mark.ray


def test_rays_own_request_resources_reaches_us(plain_head) -> None:
    link = GcsClient(plain_head.address, AUTH)
    StatePublisher(link).publish(ClusterSpec(node_types=(node_type(),)))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    driver = RayDriver({**kept, **plain_head.environment()})
    try:
        driver.run("from ray.autoscaler.sdk import request_resources as theirs; theirs(num_cpus=2)")
        [constraint] = GcsNodeSource(link).read().constraints
        driver.run("theirs(num_cpus=0)")
        after = GcsNodeSource(link).read().constraints
    finally:
        driver.close()
    wanted: list[Demand] = list(constraint.demands)
    assert [(demand.shape, demand.count) for demand in wanted] == [(Resources.of(CPU=1), 2)]
    assert [demand for one in after for demand in one.demands] == []
