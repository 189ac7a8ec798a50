"""Measure from demand to N ready nodes, and from idle to gone, on real Ray clusters here.

Ray's autoscaler v2 with its fake multi-node provider (nodes started inside its monitor), ours with the
process provider, and N nodes that `ray start` makes at once, by hand; in turns. Wall seconds; medians. Ours
is broken down into its steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import table
from bench.options import Options
from bench.ours import scaleup as ours

NODES, MAX_WORKERS, IDLE_S, SPEED = 3, 4, 6.0, 1.0
ROUNDS, REST_NODES, REST_S = 3, 4, 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of ours, each from the one before; "first" and "last" of the N nodes.
STEPS = {
    "in_gcs": "demand in the GCS (Ray's own delay)",
    "decided": "seen by the monitor, first node decided",
    "launch_call": "launch call of the first node",
    "forked": "its process forked",
    "first_joined": "first node in the cluster's list",
    "last_forked": "process of the last node forked",
    "last_joined": "last node in the cluster's list",
    "ready": "work runs on each",
}


def run(options: Options) -> dict[str, float]:
    """Run clusters in turns, then our monitor at rest."""
    rounds = 1 if options.quick else ROUNDS
    sides: dict[str, list[Mapping[str, float]]] = {"ours": [], "ray": [], "by_hand": []}
    for number in range(rounds):
        if options.wants("ray") and options.with_peer:
            table.progress(f"scaleup: Ray's autoscaler, round {number + 1} of {rounds}")
            sides["ray"].append(round_of_ray())
        if options.wants("ours"):
            table.progress(f"scaleup: ours, round {number + 1} of {rounds}")
            sides["ours"].append(round_of_ours())
        if options.wants("by_hand"):
            table.progress(f"scaleup: by hand, round {number + 1} of {rounds}")
            sides["by_hand"].append(round_by_hand())
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
        steps = running.steps(at["asked"])
    reached = {
        "in_gcs": at["in_gcs"],
        **{name: times[0] for name, times in steps.items()},
        "last_forked": steps["forked"][NODES - 1],
        "first_joined": at["joined"][0],
        "last_joined": at["joined"][-1],
        "ready": at["tenants_ready"],
    }
    return {
        **phases(at),
        "launch_call": reached["launch_call"] - at["in_gcs"],
        "asked_to_launch_call": reached["launch_call"] - at["asked"],
        "launched": float(len(steps["launch_call"])),
        **{f"step.{name}": reached[name] - at["asked"] for name in STEPS},
    }


def round_by_hand() -> dict[str, float]:
    """Start N nodes with `ray start` at the moment of the demand, on a head without an autoscaler."""
    from tests.support.ray_cluster import RayCluster

    with RayCluster(resources={"CPU": 0}) as cluster:

        def start() -> None:
            for number in range(NODES):
                cluster.add_worker(f"hand-{number}", {"CPU": 1})

        return phases(driven(cluster.address, cluster.environment(), "keep", then=start))


def driven(
    address: str, auth: Mapping[str, str], *more: str, then: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run the demand, `then` when it has asked, and returns its times."""
    command = [sys.executable, "-m", "bench.scaleup_demand", address, str(NODES), *more]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **auth}, **streams) as demand:  # type: ignore[call-overload]
        demand.stdout.readline()
        then()
        output, errors = demand.communicate()
    if demand.returncode:
        raise RuntimeError(f"the demand process failed:\n{errors[-3000:]}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    if found["places"] != NODES:
        raise RuntimeError(f"{NODES} actors ran on {found['places']} nodes")
    return found


def phases(at: Mapping[str, Any]) -> dict[str, float]:
    found = {
        "demand_to_joined": at["nodes_ready"] - at["asked"],
        "demand_to_ready": at["tenants_ready"] - at["asked"],
    }
    return {**found, "idle_to_gone": at["nodes_gone"] - at["released"]} if "nodes_gone" in at else found


def compared(sides: Mapping[str, list[Mapping[str, float]]]) -> dict[str, float]:
    names = {
        "demand_to_ready": f"demand to {NODES} ready nodes (work runs on each), s",
        "demand_to_joined": f"demand to {NODES} nodes in the cluster's list, s",
        "idle_to_gone": f"idle to gone (timeout {IDLE_S:g} s), s",
        "launch_call": "demand in the GCS to our launch call, s",
        "asked_to_launch_call": "demand to our launch call, s",
        "launched": f"machines launched for {NODES} wanted",
    }
    medians = {
        (side, name): statistics.median(one[name] for one in rounds)
        for side, rounds in sides.items()
        for name in names
        if rounds and name in rounds[0]
    }
    figures = {
        f"seconds.{side}.{name}": value for (side, name), value in medians.items() if name != "launched"
    }
    rows = []
    for name, text in names.items():
        mine, other, hand = (medians.get((side, name)) for side in ("ours", "ray", "by_hand"))
        if mine and other:
            figures[f"speedup.{name}"] = other / mine
        times = (table.seconds(value) for value in (other, mine, hand))
        rows.append((text, *times, table.times(figures.get(f"speedup.{name}"))))
    table.show("scale-up, medians", ("", "Ray v2", "ours", "by hand", "Ray / ours"), rows)
    show_steps(sides["ours"])
    if sides["ours"]:
        figures["machines_launched"] = max(one["launched"] for one in sides["ours"])
    mine, hand = (medians.get((side, "demand_to_ready")) for side in ("ours", "by_hand"))
    if mine and hand:
        figures["ready_over_by_hand"] = mine / hand
        table.note(f"demand to {NODES} ready nodes, ours over by hand: {mine / hand:.2f}")
    return figures


def show_steps(rounds: list[Mapping[str, float]]) -> None:
    if not rounds:
        return
    rows, before = [], 0.0
    for name, text in STEPS.items():
        at = statistics.median(one[f"step.{name}"] for one in rounds)
        rows.append((text, table.seconds(at), f"{at - before:.3f}"))
        before = at
    table.show("ours, step by step, medians", ("", "since the demand, s", "of the step, s"), rows)


def at_rest(seconds: float) -> float:
    """Return the CPU of our monitor as a share of one core, nodes idle and kept by min_workers."""
    with ours.cluster(MAX_WORKERS, 3600.0, SPEED, min_workers=REST_NODES) as running:
        time.sleep(60.0)  # four nodes come, one after another
        before, began = cpu_s(running.monitor_pid), time.monotonic()
        time.sleep(seconds)
        return 100.0 * (cpu_s(running.monitor_pid) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """Return user and system time of a process and of those of its children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS_PER_S
