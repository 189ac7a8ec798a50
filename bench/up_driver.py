"""Run in another process: sets hosts up with muster's installer, and prints what that took as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.plan import Install
from muster.config.node_launch import RuntimeHashes
from muster.remote.installer import NodeInstaller
from muster.remote.node_setup import Timing
from muster.remote.runner import Host
from muster.remote.ssh import SshRunner
from muster.remote.steps import TAG_STATUS, UP_TO_DATE, NodeSetup

PR_SET_CHILD_SUBREAPER = 36


class Rack:
    """Implements InstallAccess: hosts by address, tags in memory."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        directory = Path(asked["directory"])
        (directory / "files").mkdir(parents=True)
        (directory / "files" / "train.py").write_text("print('hello')\n" * 100)
        line = f"sleep {asked['command_s']}"
        self.setup = NodeSetup(
            file_mounts={"~/files": str(directory / "files")},
            initialization_commands=(line,),
            setup_commands=(line, line, line),
            start_commands=(line,),
            hashes=RuntimeHashes(directory.name, None),
        )
        self.scripted_s = 5 * asked["command_s"]
        self._key, self._pins = asked["key"], str(directory / "known_hosts")
        self._tags: dict[str, dict[str, str]] = {}
        self.ended: dict[str, float] = {}  # by node: when it was up to date

    def tags(self, node: str) -> Mapping[str, str]:
        return self._tags.setdefault(node, {})

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        self._tags.setdefault(node, {}).update(tags)
        if tags.get(TAG_STATUS) == UP_TO_DATE:
            self.ended[node] = time.monotonic()

    def is_gone(self, node: str) -> bool:
        return False

    def setup_of(self, action: Install) -> NodeSetup:
        return self.setup

    def runner_of(self, cloud_id: CloudId) -> SshRunner:
        return SshRunner(Host(ip=cloud_id, user="root", private_key=self._key, known_hosts=self._pins))


def main(asked: Mapping[str, Any]) -> dict[str, Any]:
    # The masters of shared connections leave their parents; here their CPU time must be counted as well.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rack = Rack(asked)
    installer = NodeInstaller(rack, Path(asked["directory"]) / "logs", timing=Timing())
    requests = [RequestId(f"r-{ip}") for ip in asked["ips"]]
    cpu_before, began = cpu_s(), time.monotonic()
    for ip, request in zip(asked["ips"], requests, strict=True):
        instance = InstanceId(f"m-{ip}")
        installer.start(
            Install(request_id=request, instance_id=instance, cloud_id=CloudId(ip), node_type="w")
        )
    while any(installer.under_way(request) for request in requests):
        time.sleep(0.05)
    wall_s = time.monotonic() - began
    installer.close()
    reap()
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s() - cpu_before,
        "mean_node_s": sum(at - began for at in rack.ended.values()) / max(1, len(rack.ended)),
        "scripted_s": rack.scripted_s,
        "steps": 5,
        "nodes": len(requests),
        "failures": [failure.message for failure in installer.poll()],
    }


def cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def reap() -> None:
    """Wait for the masters, which end when their connection is closed."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
