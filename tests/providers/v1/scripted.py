"""A v1 provider that does what a test tells it to, and remembers every call."""

from __future__ import annotations

import itertools
import threading

from tests.providers.v1.dict_provider import DictNodeProvider

from muster.config.to_spec import NodeLaunch
from muster.providers.background_calls import inline_pools
from muster.providers.v1.adapter import AdapterLimits, V1Adapter

LAUNCHES = {
    "cpu": NodeLaunch(
        node_type="cpu",
        node_config={"InstanceType": "small", "tags": ["a"]},
        resources={"CPU": 4},
        labels={"zone": "a"},
        launch_hash="h-cpu",
    ),
    "gpu": NodeLaunch(node_type="gpu", resources={"GPU": 1}, launch_hash="h-gpu"),
}
_clusters = itertools.count(1)


class Scripted(DictNodeProvider):
    """`before_create`, `before_terminate` and `before_list` run first and may raise or wait."""

    def __init__(self, provider_config=None, cluster_name=None):
        super().__init__(provider_config or {}, cluster_name or f"scripted-{next(_clusters)}")
        self.creates = []  # (type, count)
        self.terminates = []  # lists of ids
        self.now_creating = self.most_creating = 0
        self.before_create = self.after_create = self.before_terminate = self.before_list = lambda *_: None
        self._count = threading.Lock()

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        self.last_create = node_config, dict(tags), count, resources, labels
        with self._count:
            self.creates.append((tags["ray-user-node-type"], count))
            self.now_creating += 1
            self.most_creating = max(self.most_creating, self.now_creating)
        try:
            self.before_create(tags, count)
            made = super().create_node(node_config, tags, count)
            answer = self.after_create(made)
            return made if answer is None else answer
        finally:
            with self._count:
                self.now_creating -= 1

    def non_terminated_nodes(self, tag_filters):
        self.before_list(tag_filters)
        return super().non_terminated_nodes(tag_filters)

    def terminate_nodes(self, node_ids):
        self.terminates.append(list(node_ids))
        for node_id in node_ids:
            self._end(node_id)

    def terminate_node(self, node_id):
        self.terminates.append([node_id])
        self._end(node_id)

    def _end(self, node_id):
        self.before_terminate(node_id)
        super().terminate_node(node_id)


def adapted(provider, *, threads=False, **limits):
    pools = None if threads else inline_pools()
    return V1Adapter(
        provider,
        lambda: LAUNCHES,
        cluster_name=provider.cluster_name,
        limits=AdapterLimits(**limits),
        pools=pools,
    )


def counted(port):
    """How many machines of each type are listed."""
    counts = {}
    for machine in port.list_instances().values():
        counts[machine.node_type] = counts.get(machine.node_type, 0) + 1
    return counts
