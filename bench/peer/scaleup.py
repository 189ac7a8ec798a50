"""Run Ray's autoscaler v2 with its fake multi-node provider, as a cluster that can be opened and closed.

The wheel lacks the defaults file of `type: fake_multinode`, so its class is named as an external provider.
The head gets the identity which that provider expects. Ended by process group, not by `ray stop`.
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
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from muster.providers.process.ray_command import free_ports, is_listening

HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"  # what the fake provider calls the head
START_S = 120.0


@contextlib.contextmanager
def cluster(
    max_workers: int, idle_s: float, upscaling_speed: float, auth: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address and what a driver's environment needs, while the cluster is up."""
    temp_dir = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    gcs, client, http, grpc, metrics, monitor = free_ports(6)
    config = temp_dir / "cluster.yaml"
    config.write_text(yaml.safe_dump(document(gcs, max_workers, idle_s, upscaling_speed)))
    auth = dict(auth or {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--node-ip-address=127.0.0.1"),
        *(f"--port={gcs}", f"--ray-client-server-port={client}", f"--metrics-export-port={metrics}"),
        *(f"--dashboard-agent-listen-port={http}", f"--dashboard-agent-grpc-port={grpc}"),
        *("--object-store-memory=100000000", f"--temp-dir={temp_dir}", f"--autoscaling-config={config}"),
    ]
    environment = {
        **os.environ,
        **auth,
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_NODE_TYPE_NAME": HEAD_TYPE,
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": str(monitor),
    }
    with (temp_dir / "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_monitor(head, gcs, temp_dir)
        yield f"127.0.0.1:{gcs}", auth
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(temp_dir, ignore_errors=True)


def document(gcs_port: int, max_workers: int, idle_s: float, upscaling_speed: float) -> dict[str, object]:
    """Return the cluster file. Workers have one CPU, the head has none."""
    worker = {
        "resources": {"CPU": 1, "object_store_memory": 100_000_000},
        "node_config": {},
        "min_workers": 0,
    }
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "peer",
        "max_workers": max_workers,
        "upscaling_speed": upscaling_speed,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": f"127.0.0.1:{gcs_port}",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {**worker, "max_workers": max_workers},
        },
        **{f"{name}_commands": [] for name in lists},
        **{"auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": []},
        **{"file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": []},
    }


def wait_for_monitor(head: subprocess.Popen[bytes], gcs_port: int, temp_dir: Path) -> None:
    """Wait until the head listens and its autoscaler has begun to log, and a few of its rounds more."""
    give_up = time.monotonic() + START_S
    log = temp_dir / "session_latest" / "logs" / "monitor.log"
    while not (is_listening(gcs_port) and log.exists() and log.stat().st_size):
        _check(head, temp_dir, is_late=time.monotonic() > give_up)
        time.sleep(0.2)
    time.sleep(12.0)
    _check(head, temp_dir)


def _check(head: subprocess.Popen[bytes], temp_dir: Path, *, is_late: bool = False) -> None:
    if is_late or head.poll() is not None:
        log = (temp_dir / "head.log").read_text(errors="replace")[-1500:]
        raise RuntimeError(f"Ray's head did not start within {START_S:.0f} s; the end of its log:\n{log}")
