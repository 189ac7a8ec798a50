"""A provider as somebody would write it in an afternoon: everything in a dictionary of this process."""

from __future__ import annotations

import itertools
import threading

from muster.autoscaler import NodeProvider

_clusters: dict[str, dict[str, dict]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


class DictNodeProvider(NodeProvider):
    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        with _lock:
            self.nodes = _clusters.setdefault(cluster_name, {})

    def non_terminated_nodes(self, tag_filters):
        with _lock:
            return [
                node_id
                for node_id, node in self.nodes.items()
                if node["state"] != "terminated" and tag_filters.items() <= node["tags"].items()
            ]

    def is_running(self, node_id):
        return self.nodes[node_id]["state"] == "running"

    def is_terminated(self, node_id):
        return self.nodes[node_id]["state"] == "terminated"

    def node_tags(self, node_id):
        with _lock:
            return dict(self.nodes[node_id]["tags"])

    def set_node_tags(self, node_id, tags):
        with _lock:
            self.nodes[node_id]["tags"].update(tags)

    def internal_ip(self, node_id):
        return self.nodes[node_id]["ip"]

    def external_ip(self, node_id):
        return None

    def create_node(self, node_config, tags, count):
        made = {}
        for _ in range(count):
            with _lock:
                number = next(_numbers)
                node = {"state": "running", "tags": dict(tags), "ip": f"10.1.{number // 256}.{number % 256}"}
                self.nodes[f"node-{number}"] = node
            made[f"node-{number}"] = {"ip": node["ip"]}
        return made

    def terminate_node(self, node_id):
        with _lock:
            self.nodes[node_id]["state"] = "terminated"
