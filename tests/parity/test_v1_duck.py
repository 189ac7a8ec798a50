"""Check that a class derived from Ray's own NodeProvider runs unchanged under our adapter.

Ray is run here as it is installed; the product itself never imports ray.autoscaler.
"""

from __future__ import annotations

import itertools
import threading
import warnings

import pytest
from tests.providers.v1.scripted import LAUNCHES

from muster.cluster.model import FailureKind
from muster.providers.background_calls import inline_pools
from muster.providers.v1.adapter import V1Adapter
from muster.testing import CloudProviderContract, ProviderContract

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    node_provider = pytest.importorskip(
        "ray.autoscaler.node_provider", reason="Ray's own autoscaler is not installed"
    )
    launch_exception = pytest.importorskip("ray.autoscaler.node_launch_exception")

clusters: dict[str, dict[str, dict]] = {}
numbers = itertools.count(1)
lock = threading.RLock()


class RayStyleProvider(node_provider.NodeProvider):
    """Has only what Ray requires of a provider."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.nodes = clusters.setdefault(cluster_name, {})

    def non_terminated_nodes(self, tag_filters):
        with lock:
            alive = [n for n, node in self.nodes.items() if node["alive"]]
            return [n for n in alive if tag_filters.items() <= self.nodes[n]["tags"].items()]

    def is_running(self, node_id):
        return self.nodes[node_id]["alive"]

    def is_terminated(self, node_id):
        return not self.nodes[node_id]["alive"]

    def node_tags(self, node_id):
        with lock:
            return dict(self.nodes[node_id]["tags"])

    def set_node_tags(self, node_id, tags):
        with lock:
            self.nodes[node_id]["tags"].update(tags)

    def external_ip(self, node_id):
        return self.nodes[node_id]["ip"]

    def internal_ip(self, node_id):
        return self.nodes[node_id]["ip"]

    def create_node(self, node_config, tags, count):
        if self.provider_config.get("sold_out"):
            raise launch_exception.NodeLaunchException("OutOfStock", "no capacity in this zone", None)
        for _ in range(count):
            with lock:
                number = next(numbers)
                self.nodes[f"ray-{number}"] = {"alive": True, "tags": dict(tags), "ip": f"10.2.0.{number}"}

    def terminate_node(self, node_id):
        with lock:
            self.nodes[node_id]["alive"] = False


class TestRayStyleProvider(ProviderContract):
    def make_provider(self, cluster_name):
        return RayStyleProvider({"type": "external"}, cluster_name)


class TestAdaptedRayStyleProvider(CloudProviderContract):
    def open_provider(self):
        name = f"duck-{next(numbers)}"
        return V1Adapter(RayStyleProvider({}, name), lambda: LAUNCHES, cluster_name=name)


def test_what_it_raises_is_understood():
    provider = RayStyleProvider({"sold_out": True}, "sold-out")
    port = V1Adapter(provider, lambda: LAUNCHES, cluster_name="sold-out", pools=inline_pools())
    port.launch("r-1", {"cpu": 2})
    assert [(f.kind, f.message) for f in port.poll_launch_failures()] == [
        (FailureKind.CAPACITY, "OutOfStock: no capacity in this zone")
    ] * 2
    assert not port.traits().read_only
