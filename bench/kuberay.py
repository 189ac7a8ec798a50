"""Measure the sidecar of a RayCluster with 1,000 pods in 20 groups: CPU of a tick, memory, requests.

The API server is the one of the tests, in this process; the sidecar is a separate process, under the limits
that KubeRay gives it (512 MiB, half a CPU) where this computer lets us set them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kube.api_server import NAMESPACE, KubeApi, running_api
from tests.kube.operator import ray_cluster, running_status, worker_group

from bench import table
from bench.options import Options

ROOT = Path(__file__).resolve().parent.parent
PODS, GROUPS = 1000, 20
TICKS = 40
CHANGES_PER_S = 10  # of the status of pods: heartbeats of a living cluster
LIMIT_MIB, LIMIT_CPU = 512, 0.5
SUFFIX = f".{PODS}"


def run(options: Options) -> dict[str, float]:
    """Measure, print the table, return the figures."""
    ticks = 10 if options.quick else TICKS
    table.progress(f"kuberay: an API server with {PODS} pods in {GROUPS} groups")
    with running_api() as api:
        fill(api)
        token = api.token("kuberay-1.3")
        with changing(api), limited() as (prefix, is_limited):
            figures = measured(api, token, ticks, prefix)
            if options.with_peer:
                table.progress("kuberay: Ray's provider on the same server")
                figures |= peer_figures(api, max(5, ticks // 4), prefix, figures)
    limits = f"{LIMIT_MIB} MiB, {LIMIT_CPU:g} CPU" if is_limited else "no limits: no cgroups to write to"
    rows = [
        ("CPU of a steady tick, all threads", table.seconds(figures[f"tick_cpu_ms{SUFFIX}"] / 1000)),
        ("CPU of a tick that asks for 100 pods", table.seconds(figures[f"growing_cpu_s{SUFFIX}"])),
        ("peak memory of the sidecar, Ray loaded", f"{figures[f'sidecar_mb{SUFFIX}']:.0f} MB"),
        ("requests per steady tick", f"{figures[f'requests_per_tick{SUFFIX}']:.2f}"),
        ("requests of the growing ticks", f"{figures[f'requests_to_grow{SUFFIX}']:.0f}"),
    ]
    if options.with_peer:
        rows += [
            (
                "CPU of a listing, ours (list, watch, one GET)",
                table.seconds(figures[f"listing_cpu_s{SUFFIX}"]),
            ),
            ("CPU of a listing, Ray's provider", table.seconds(figures[f"peer_listing_cpu_s{SUFFIX}"])),
            ("requests of a listing, Ray's", f"{figures[f'peer_requests_per_listing{SUFFIX}']:.2f}"),
        ]
    table.show(f"kuberay: {PODS} pods in {GROUPS} groups ({limits})", ("sidecar", "ours"), rows)
    return figures


def measured(api: KubeApi, token: str, ticks: int, prefix: list[str]) -> dict[str, float]:
    command = [*prefix, sys.executable, "-m", "bench.ours.kuberay", api.url, token, str(ticks)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    counts, seen = followed(child, api, token, 4)
    steady, growing = counts[1] - counts[0], counts[3] - counts[2]
    return {
        f"listing_cpu_s{SUFFIX}": seen["listing_s"],
        f"tick_cpu_ms{SUFFIX}": seen["steady_s"] * 1000,
        f"growing_cpu_s{SUFFIX}": seen["growing_s"],
        f"sidecar_mb{SUFFIX}": seen["peak_mb"],
        f"requests_per_tick{SUFFIX}": steady / ticks,
        f"requests_to_grow{SUFFIX}": float(growing),
    }


def peer_figures(api: KubeApi, times: int, prefix: list[str], ours: dict[str, float]) -> dict[str, float]:
    """Measure one listing of Ray's provider; Ray makes one in every loop, in the loop's own thread."""
    token = api.token("kuberay-1.7")
    command = [*prefix, sys.executable, "-m", "bench.peer.kuberay", api.url, token, str(times)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    counts, seen = followed(child, api, token, 2)
    return {
        f"peer_listing_cpu_s{SUFFIX}": seen["listing_s"],
        f"peer_requests_per_listing{SUFFIX}": (counts[1] - counts[0]) / times,
        f"listing_speedup{SUFFIX}": seen["listing_s"] / ours[f"listing_cpu_s{SUFFIX}"],
    }


def followed(child: subprocess.Popen[str], api: KubeApi, token: str, lines: int) -> tuple[list[int], dict]:
    """Return how many requests the child had made at each line that it printed, and its last line."""
    counts: list[int] = []
    last = ""
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            last = line
            counts.append(sum(one.token == token for one in api.asked))
    if child.wait() != 0 or len(counts) != lines:
        raise RuntimeError("a sidecar did not come to its end")
    return counts, json.loads(last)


def fill(api: KubeApi) -> None:
    """Make the RayCluster and its pods, as large as real ones are (about 9 kB each)."""
    each = PODS // GROUPS
    groups = [worker_group(f"group-{n:02d}", each, maxReplicas=200) for n in range(GROUPS)]
    store = api.store
    with store.changed:
        store.create("rayclusters", NAMESPACE, ray_cluster("demo", *groups))
        store.create("pods", NAMESPACE, pod("demo-head", "headgroup", 0))
        for number in range(PODS):
            store.create(
                "pods", NAMESPACE, pod(f"demo-w-{number:04d}", f"group-{number // each:02d}", number)
            )


def pod(name: str, group: str, number: int) -> dict:
    kind = "head" if group == "headgroup" else "worker"
    labels = {"ray.io/cluster": "demo", "ray.io/group": group, "ray.io/node-type": kind}
    env = [{"name": f"VARIABLE_{n}", "value": f"value-{n}-of-{name}"} for n in range(30)]
    fields = {f"f:field{n}": {".": {}, f'k:{{"name":"VARIABLE_{n}"}}': {}} for n in range(60)}
    managed = [{"manager": "ray-operator", "operation": "Update", "fieldsV1": fields}]
    container = {"name": "ray", "image": "ray", "env": env}
    volumes = [{"name": f"volume-{n}", "emptyDir": {}} for n in range(10)]
    return {
        "metadata": {"name": name, "labels": labels, "managedFields": managed},
        "spec": {"containers": [container], "volumes": volumes, "nodeName": "node-1"},
        "status": running_status(number),
    }


@contextmanager
def changing(api: KubeApi) -> Iterator[None]:
    """Change the status of some pods all the time."""
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.wait(1 / CHANGES_PER_S):
            with api.store.changed:
                number = (number + 7) % PODS
                found = api.store.find("pods", NAMESPACE, f"demo-w-{number:04d}")
                status = {**found["status"], "observed": number, "at": api.store.version}
                api.store.replace("pods", found, {**found, "status": status})

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def limited() -> Iterator[tuple[list[str], bool]]:
    """Yield the beginning of a command that runs under the sidecar's limits, and whether there are any."""
    groups = [Path("/sys/fs/cgroup") / kind / f"muster-bench-{os.getpid()}" for kind in ("memory", "cpu")]
    try:
        for group in groups:
            group.mkdir()
        (groups[0] / "memory.limit_in_bytes").write_text(str(LIMIT_MIB * 2**20))
        (groups[1] / "cpu.cfs_period_us").write_text("100000")
        (groups[1] / "cpu.cfs_quota_us").write_text(str(int(LIMIT_CPU * 100000)))
    except OSError:
        _remove(groups)
        yield [], False
        return
    joins = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    try:
        yield [shutil.which("sh") or "sh", "-c", f'{joins}; exec "$@"', "sh"], True
    finally:
        _remove(groups)


def _remove(groups: list[Path]) -> None:
    for group in groups:
        with suppress(OSError):
            group.rmdir()
