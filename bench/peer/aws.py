"""Run Ray's autoscaler with its AWS provider against a server that counts calls, until it has its machines.

A real head with Ray's monitor: the file asks for so many workers at once, and the monitor buys them with its
own loop and its own limits. No machine ever becomes a node, so that only the loop and the provider are seen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench import table
from muster.providers.process.ray_command import free_ports

START_S, LIMIT_S = 120.0, 900.0
LOOP_S, STEPS = 5.0, 6  # between two steps of Ray's loop, and how many are counted
STEP_DONE = "to complete the update iteration"


def counted(
    count: int,
    environment: Mapping[str, str],
    machine: Mapping[str, Any],
    calls: Callable[[], int],
    made: Callable[[], int],
) -> dict[str, float]:
    """Return calls until `count` workers are there, and calls per step of the loop after that.

    `calls` and `made` count what the server has seen and has; `machine` is a node_config that needs nothing
    more.
    """
    temp_dir = Path(tempfile.mkdtemp(prefix="mba-", dir="/tmp"))
    head = _started(temp_dir, count, environment, machine)
    try:
        began = calls()
        _until(lambda: made() >= count, head, temp_dir, lambda: f"Ray: {made()} of {count} machines")
        launched = calls() - began
        time.sleep(3 * LOOP_S)  # what it still does about the last ones
        before, done = calls(), _steps(temp_dir)
        _until(
            lambda: _steps(temp_dir) >= done + STEPS,
            head,
            temp_dir,
            lambda: f"Ray: {STEPS} steps of its loop",
        )
        return {"launch": float(launched), "tick": (calls() - before) / (_steps(temp_dir) - done)}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(temp_dir, ignore_errors=True)


def _steps(temp_dir: Path) -> int:
    """Return how many steps of its loop Ray's monitor has logged."""
    logs = temp_dir.glob("session_2*/logs/monitor.log")
    return sum(one.read_text(errors="replace").count(STEP_DONE) for one in logs)


def _started(
    temp_dir: Path, count: int, environment: Mapping[str, str], machine: Mapping[str, Any]
) -> subprocess.Popen[bytes]:
    gcs, client, http, grpc, metrics, monitor = free_ports(6)
    config = temp_dir / "cluster.yaml"
    config.write_text(yaml.safe_dump(document(count, environment["AWS_DEFAULT_REGION"], machine)))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--node-ip-address=127.0.0.1"),
        *(f"--port={gcs}", f"--ray-client-server-port={client}", f"--metrics-export-port={metrics}"),
        *(f"--dashboard-agent-listen-port={http}", f"--dashboard-agent-grpc-port={grpc}"),
        *("--object-store-memory=100000000", f"--temp-dir={temp_dir}", f"--autoscaling-config={config}"),
    ]
    settings = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AWS_"))},
        **environment,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_enable_autoscaler_v2": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": str(monitor),
    }
    with (temp_dir / "head.log").open("wb") as log:
        return subprocess.Popen(command, env=settings, stdout=log, stderr=log, start_new_session=True)


def document(count: int, region: str, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster file: `count` workers from the start; no updaters, as nobody answers over SSH."""
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    worker = {
        "resources": {"CPU": 2},
        "node_config": dict(machine),
        "min_workers": count,
        "max_workers": count,
    }
    return {
        "cluster_name": "peer",
        "max_workers": count,
        "upscaling_speed": 1000.0,
        "idle_timeout_minutes": 60,
        "provider": {
            "type": "aws",
            "region": region,
            "cache_stopped_nodes": False,
            "disable_node_updaters": True,
        },
        "auth": {"ssh_user": "ubuntu"},
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "node_config": dict(machine), "max_workers": 0},
            "worker": worker,
        },
        **{f"{name}_commands": [] for name in lists},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
    }


def _until(
    holds: Callable[[], bool], head: subprocess.Popen[bytes], temp_dir: Path, say: Callable[[], str]
) -> None:
    give_up, told = time.monotonic() + LIMIT_S, 0.0
    while not holds():
        if head.poll() is not None or time.monotonic() > give_up:
            log = (temp_dir / "head.log").read_text(errors="replace")[-2000:]
            logs = sorted(temp_dir.glob("session_*/logs/monitor*"))
            monitor = "".join(one.read_text(errors="replace")[-2000:] for one in logs)
            raise RuntimeError(f"{say()}; Ray's head did not get there: {log}\n{monitor}")
        if time.monotonic() - told > 20:
            told = time.monotonic()
            table.progress(f"aws: {say()}")
        time.sleep(0.5)
