"""A provider of a user, with its own command runner: a machine is a directory of this computer, its HOME."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from muster.autoscaler import NodeProvider


class OwnRunner:
    """Runs commands by Ray's method names; it blocks, as those of users do."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, cmd, timeout=120, with_output=False, environment_variables=None, **_):
        settings = {**os.environ, "HOME": str(self.home), **(environment_variables or {})}
        return subprocess.run(
            ["bash", "-c", cmd], env=settings, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ).stdout

    def run_rsync_up(self, source, target, options=None):
        subprocess.run(["cp", "-r", source, target.replace("~", str(self.home))], check=True)

    def run_rsync_down(self, source, target, options=None):
        subprocess.run(["cp", "-r", source.replace("~", str(self.home)), target], check=True)

    def run_init(self, *, as_head, file_mounts, sync_run_yet):
        return None

    def remote_shell_command_str(self):
        return f"HOME={self.home} bash"


class OwnMachines(NodeProvider):
    """Keeps its nodes in a file; `bootstrap_config` and `prepare_for_head_node` leave their marks."""

    def _nodes(self):
        file = Path(self.provider_config["folder"], "nodes.json")
        return json.loads(file.read_text()) if file.exists() else {}

    def _save(self, nodes):
        Path(self.provider_config["folder"], "nodes.json").write_text(json.dumps(nodes))

    def non_terminated_nodes(self, tag_filters):
        return [node for node, tags in self._nodes().items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id):
        return node_id in self._nodes()

    def is_terminated(self, node_id):
        return node_id not in self._nodes()

    def node_tags(self, node_id):
        return self._nodes()[node_id]

    def set_node_tags(self, node_id, tags):
        nodes = self._nodes()
        nodes[node_id].update(tags)
        self._save(nodes)

    def external_ip(self, node_id):
        return "127.0.0.1"

    def internal_ip(self, node_id):
        return "127.0.0.1"

    def create_node(self, node_config, tags, count):
        Path(self.provider_config["folder"], "m-1").mkdir(exist_ok=True)
        self._save({**self._nodes(), "m-1": {**tags, "config": json.dumps(node_config)}})

    def terminate_node(self, node_id):
        nodes = self._nodes()
        nodes.pop(node_id, None)
        self._save(nodes)

    @staticmethod
    def bootstrap_config(cluster_config):
        cluster_config["provider"]["subnet"] = "s-1"
        for entry in cluster_config["available_node_types"].values():
            entry["node_config"]["image"] = "ubuntu"
        return cluster_config

    def prepare_for_head_node(self, cluster_config):
        cluster_config["provider"]["from_head"] = True
        return cluster_config

    def get_command_runner(
        self,
        log_prefix,
        node_id,
        auth_config,
        cluster_name,
        process_runner,
        use_internal_ip,
        docker_config=None,
    ):
        return OwnRunner(Path(self.provider_config["folder"], node_id))
