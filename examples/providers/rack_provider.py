"""Runs a cluster on a rack of computers: each listed host is a node only while it is needed."""

import json
import sqlite3
import subprocess
from contextlib import contextmanager

from muster.autoscaler import NodeLaunchException, NodeProvider

TABLE = """CREATE TABLE IF NOT EXISTS nodes (number INTEGER PRIMARY KEY AUTOINCREMENT,
           cluster TEXT, host TEXT, tags TEXT, alive INTEGER DEFAULT 1)"""


class RackProvider(NodeProvider):
    @contextmanager
    def _nodes(self):
        """Opens the state for one change at a time; it is a file, so that it survives this process."""
        db = sqlite3.connect(self.provider_config["state"], timeout=60, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute(TABLE)
            yield db
            db.execute("COMMIT")
        finally:
            db.close()

    def _node(self, node_id):
        with self._nodes() as db:
            number = node_id.removeprefix("rack-")
            found = db.execute("SELECT host, tags, alive FROM nodes WHERE number = ?", (number,)).fetchone()
        if found is None:
            raise KeyError(f"no node {node_id}")
        return found

    def non_terminated_nodes(self, tag_filters):
        query = "SELECT number, tags FROM nodes WHERE alive AND cluster = ?"
        with self._nodes() as db:
            rows = db.execute(query, (self.cluster_name,)).fetchall()
        return [f"rack-{n}" for n, tags in rows if tag_filters.items() <= json.loads(tags).items()]

    def is_running(self, node_id):
        return bool(self._node(node_id)[2])

    def is_terminated(self, node_id):
        return not self.is_running(node_id)

    def node_tags(self, node_id):
        return json.loads(self._node(node_id)[1])

    def set_node_tags(self, node_id, tags):
        change = "UPDATE nodes SET tags = json_patch(tags, ?) WHERE number = ?"
        with self._nodes() as db:
            db.execute(change, (json.dumps(tags), node_id.removeprefix("rack-")))

    def internal_ip(self, node_id):
        return self._node(node_id)[0]

    def external_ip(self, node_id):
        return None

    def create_node(self, node_config, tags, count):
        for _ in range(count):
            with self._nodes() as db:
                taken = {host for (host,) in db.execute("SELECT host FROM nodes WHERE alive")}
                free = [host for host in self.provider_config["hosts"] if host not in taken]
                if not free:
                    raise NodeLaunchException("SoldOut", f"all {len(taken)} hosts of the rack are in use")
                row = (self.cluster_name, free[0], json.dumps(tags))
                new = db.execute("INSERT INTO nodes (cluster, host, tags) VALUES (?, ?, ?)", row)
            try:
                self._run("start", f"rack-{new.lastrowid}", free[0], tags)
            except Exception:
                self._free(f"rack-{new.lastrowid}")
                raise

    def terminate_node(self, node_id):
        host, tags, alive = self._node(node_id)
        if alive:
            self._run("stop", node_id, host, json.loads(tags))
            self._free(node_id)

    def _free(self, node_id):
        with self._nodes() as db:
            db.execute("UPDATE nodes SET alive = 0 WHERE number = ?", (node_id.removeprefix("rack-"),))

    def _run(self, what, node_id, host, tags):
        known = {"host": host, "node_id": node_id, "node_type": tags["ray-user-node-type"]}
        command = self.provider_config[what].format(**known)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.strip()[-300:]}")
