"""Run the cluster that both sides of tune-ray use: one head on free ports, ended by process id."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.ray_cluster import AUTH, RayCluster

from muster.errors import EngineError
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

NODE_ENVIRONMENT = {"RAY_worker_niceness": "0"}  # workers would otherwise run with low priority
_TRIES = 3
_READY_S = 90.0


@contextmanager
def open_cluster(cpus: int) -> Iterator[dict[str, str]]:
    """Yield what drivers need in their environment."""
    before = dict(os.environ)
    os.environ.update(NODE_ENVIRONMENT)  # nodes inherit ours
    try:
        cluster = _ready_cluster(cpus)
    finally:
        for name in NODE_ENVIRONMENT.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
    try:
        yield cluster.environment()
    finally:
        cluster.close()


def _ready_cluster(cpus: int) -> RayCluster:
    """Ray gives a head's own node 30 s to register, which a busy machine may exceed: then again."""
    for _ in range(_TRIES):
        cluster = RayCluster({"CPU": cpus})
        if _is_ready(cluster):
            return cluster
        cluster.close()
    raise RuntimeError(f"{_TRIES} heads were started and none got its own node: the machine is too busy")


def _is_ready(cluster: RayCluster) -> bool:
    source = GcsNodeSource(GcsClient(cluster.address, AUTH))
    give_up = time.monotonic() + _READY_S
    while time.monotonic() < give_up and cluster.nodes["head-0"].process.poll() is None:
        try:
            if source.read().nodes:
                return True
        except EngineError:
            pass  # not yet
        time.sleep(0.2)
    return False
