"""Measures from demand to N ready nodes, and from idle to gone, on real Ray clusters here.

Ray's autoscaler v2 with its fake multi-node provider (nodes started inside its monitor) and ours with the
process provider (`ray start` per node), in turns. Wall seconds; medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench import table
from bench.options import Options
from bench.ours import scaleup as ours

NODES, MAX_WORKERS, IDLE_S, SPEED = 3, 4, 6.0, 1.0
ROUNDS, REST_NODES, REST_S = 3, 4, 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(options: Options) -> dict[str, float]:
    """Runs clusters in turns, then our monitor at rest."""
    rounds = 1 if options.quick else ROUNDS
    sides: dict[str, list[Mapping[str, float]]] = {"ours": [], "ray": []}
    for number in range(rounds):
        if options.wants("ray") and options.with_peer:
            table.progress(f"scaleup: Ray's autoscaler, round {number + 1} of {rounds}")
            sides["ray"].append(round_of_ray())
        if options.wants("ours"):
            table.progress(f"scaleup: ours, round {number + 1} of {rounds}")
            sides["ours"].append(round_of_ours())
    figures = compared(sides)
    if options.wants("rest"):
        table.progress(f"scaleup: our monitor at rest, {REST_NODES} nodes")
        figures["monitor_cpu_percent"] = at_rest(10.0 if options.quick else REST_S)
        table.note(f"monitor at rest, {REST_NODES} nodes: {figures['monitor_cpu_percent']:.2f}% of a core")
    return figures


def round_of_ray() -> dict[str, float]:
    from bench.peer import scaleup as peer

    with peer.cluster(MAX_WORKERS, IDLE_S, SPEED) as (address, auth):
        return phases(driven(address, auth))


def round_of_ours() -> dict[str, float]:
    with ours.cluster(MAX_WORKERS, IDLE_S, SPEED) as running:
        at = driven(running.address, running.environment)
        return {**phases(at), "launch_call": running.first_launch_at(at["asked"]) - at["asked"]}


def driven(address: str, auth: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.scaleup_demand", address, str(NODES)]
    environment = {**os.environ, **auth}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the demand process failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["places"] != NODES:
        raise RuntimeError(f"{NODES} actors ran on {found['places']} nodes")
    return found


def phases(at: Mapping[str, float]) -> dict[str, float]:
    return {
        "demand_to_joined": at["nodes_ready"] - at["asked"],
        "demand_to_ready": at["tenants_ready"] - at["asked"],
        "idle_to_gone": at["nodes_gone"] - at["released"],
    }


def compared(sides: Mapping[str, list[Mapping[str, float]]]) -> dict[str, float]:
    names = {
        "demand_to_ready": f"demand to {NODES} ready nodes (work runs on each), s",
        "demand_to_joined": f"demand to {NODES} nodes in the cluster's list, s",
        "idle_to_gone": f"idle to gone (timeout {IDLE_S:g} s), s",
        "launch_call": "demand to our launch call, s",
    }
    medians = {
        (side, name): statistics.median(one[name] for one in rounds)
        for side, rounds in sides.items()
        for name in names
        if rounds and name in rounds[0]
    }
    figures = {f"seconds.{side}.{name}": value for (side, name), value in medians.items()}
    rows = []
    for name, text in names.items():
        mine, other = medians.get(("ours", name)), medians.get(("ray", name))
        if mine and other:
            figures[f"speedup.{name}"] = other / mine
        rows.append(
            (text, table.seconds(other), table.seconds(mine), table.times(figures.get(f"speedup.{name}")))
        )
    table.show("scale-up, medians", ("", "Ray v2", "ours", "Ray / ours"), rows)
    return figures


def at_rest(seconds: float) -> float:
    """Returns the CPU of our monitor as a share of one core, nodes idle and kept by min_workers."""
    with ours.cluster(MAX_WORKERS, 3600.0, SPEED, min_workers=REST_NODES) as running:
        time.sleep(60.0)  # four nodes come, one after another
        before, began = cpu_s(running.monitor_pid), time.monotonic()
        time.sleep(seconds)
        return 100.0 * (cpu_s(running.monitor_pid) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """Returns user and system time of a process and of those of its children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS_PER_S
