from __future__ import annotations

import os

import cloudpickle
import pytest
from tests.contracts.engine_contract.contract import EngineContract
from tests.ray_clusters import clear
from tests.support.ray_cluster import AUTH

from muster.engines.ray.connect import connect, import_ray, open_ray_engine
from muster.engines.ray.engine import RayOptions

pytestmark = pytest.mark.ray
OPTIONS = RayOptions(kill_after_s=0.3)


@pytest.fixture(scope="module")
def cluster(plain_head):
    os.environ.update(AUTH)
    clear(plain_head)
    ray = import_ray()
    connect(ray, plain_head.address)
    yield plain_head
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
class TestRayEngine(EngineContract):
    def open_engine(self, trainables, capacity):
        blobs = {name: cloudpickle.dumps(made) for name, made in trainables.items()}
        return open_ray_engine(trainables=blobs, capacity=capacity, options=OPTIONS)
