"""Run our monitor with the process provider, started and stopped by the commands that users run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from muster.cluster.states import InstanceState
from muster.providers.process.records import NodeDirectory
from muster.stores.ledger.history import open_history

UP_S = 180.0


@dataclass(frozen=True)
class Running:
    """A cluster of ours."""

    address: str
    environment: dict[str, str]
    monitor_pid: int
    ledger: Path

    def steps(self, since: float) -> dict[str, list[float]]:
        """Return when each machine after a moment was decided on, asked from the provider, and forked."""
        with contextlib.closing(open_history(self.ledger)) as history:
            decided = [at for record in history.find() for at in record.entered(InstanceState.REQUESTED)]
        nodes = [one for one in NodeDirectory(self.ledger.parent / "nodes").records() if not one.is_head]
        found = {
            "decided": decided,
            "launch_call": [one.created_at for one in nodes],
            "forked": [one.started_at or 0.0 for one in nodes],
        }
        return {name: sorted(at for at in times if at >= since) for name, times in found.items()}


@contextlib.contextmanager
def cluster(
    max_workers: int, idle_s: float, upscaling_speed: float, min_workers: int = 0
) -> Iterator[Running]:
    """Run `muster up` of a one-CPU worker type, and `muster down` in the end."""
    folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    config = folder / "cluster.yaml"
    config.write_text(yaml.safe_dump(document(max_workers, idle_s, upscaling_speed, min_workers)))
    environment = {**os.environ, "MUSTER_HOME": str(folder)}
    try:
        muster(environment, "up", str(config), "-y")
        record = json.loads((folder / "clusters" / "ours" / "cluster.json").read_text())
        yield Running(
            record["address"],
            dict(record["auth"]),
            record["monitor_pid"],
            folder / "clusters" / "ours" / "ledger.db",
        )
    finally:
        muster(environment, "down", str(config), "-y")
        shutil.rmtree(folder, ignore_errors=True)


def document(max_workers: int, idle_s: float, speed: float, min_workers: int) -> dict[str, object]:
    """Return the cluster file, with the same sizes and limits as the peer's."""
    return {
        "cluster_name": "ours",
        "max_workers": max_workers,
        "upscaling_speed": speed,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {"type": "process"},
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1}, "min_workers": min_workers, "max_workers": max_workers},
        },
    }


def muster(environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "-m", "muster.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=UP_S, check=False)
    if done.returncode:
        raise RuntimeError(f"muster {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
