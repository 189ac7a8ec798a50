"""A provider that keeps its state in a JSON file, locked while it is used, and that has no base class.

As a user of Ray would have written it for a rack of machines: no new-style create, ids
from a counter in the file, nodes that need a look or two before they run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path


class FileNodeProvider:
    def __init__(self, provider_config, cluster_name):
        self.provider_config = provider_config
        self.cluster_name = cluster_name
        self.path = Path(provider_config["state_dir"]) / f"{cluster_name}.json"

    @contextlib.contextmanager
    def _state(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            state = json.loads(text) if text else {"next": 1, "nodes": {}}
            yield state
            changed = json.dumps(state)
            if changed != text:
                file.seek(0)
                file.truncate()
                file.write(changed)

    def non_terminated_nodes(self, tag_filters):
        with self._state() as state:
            found = []
            for node_id, node in state["nodes"].items():
                if node["state"] == "pending":
                    node["looks"] += 1
                    node["state"] = "running" if node["looks"] > 1 else "pending"
                if node["state"] != "terminated" and tag_filters.items() <= node["tags"].items():
                    found.append(node_id)
            return found

    def _node(self, node_id):
        with self._state() as state:
            return state["nodes"][node_id]

    def is_running(self, node_id):
        self.non_terminated_nodes({})
        return self._node(node_id)["state"] == "running"

    def is_terminated(self, node_id):
        return self._node(node_id)["state"] == "terminated"

    def node_tags(self, node_id):
        return self._node(node_id)["tags"]

    def set_node_tags(self, node_id, tags):
        with self._state() as state:
            state["nodes"][node_id]["tags"].update(tags)

    def internal_ip(self, node_id):
        return self._node(node_id)["ip"]

    def external_ip(self, node_id):
        return self._node(node_id)["ip"]

    def get_node_id(self, ip_address, use_internal_ip=False):
        for node_id in self.non_terminated_nodes({}):
            if self._node(node_id)["ip"] == ip_address:
                return node_id
        raise ValueError(f"nobody has {ip_address}")

    def create_node(self, node_config, tags, count):
        with self._state() as state:
            for _ in range(count):
                number, state["next"] = state["next"], state["next"] + 1
                state["nodes"][f"{self.cluster_name}-{number}"] = {
                    "state": "pending",
                    "looks": 0,
                    "tags": dict(tags),
                    "ip": f"192.168.0.{number}",
                }

    def terminate_node(self, node_id):
        with self._state() as state:
            state["nodes"][node_id]["state"] = "terminated"

    def terminate_nodes(self, node_ids):
        for node_id in node_ids:
            self.terminate_node(node_id)
