"""Measure the largest case with both objectives: a million demands on a hundred thousand nodes.

Each objective runs in a separate process (`python -m bench.planner_large OBJECTIVE`): memory is its own.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys

from bench import check, table
from bench.options import Options
from bench.ours.planner import plan
from bench.workloads import (
    DemandData,
    NodeData,
    Workload,
    distinct_shapes,
    half_full_node,
    in_shares,
    random_type,
)
from muster.cluster.model import Objective

STATES = 5_000
RUNS = 3


def million(nodes: int = 100_000, demands: int = 1_000_000, shapes: int = 200, types: int = 400) -> Workload:
    """Return demands in 200 shapes, half-full nodes in 5,000 different states, 400 node types."""
    draw = random.Random(f"million/{shapes}/{types}")
    catalogue = [random_type(index, draw) for index in range(types)]
    asked = distinct_shapes(shapes, draw)
    states: dict[tuple[object, ...], NodeData] = {}
    while len(states) < min(STATES, nodes):
        made = half_full_node("", draw.choice(catalogue), asked, draw)
        states.setdefault((made.type, *made.available.values()), made)
    kinds = list(states.values())
    about = f"{nodes} half-full nodes in {len(kinds)} states, {demands} demands, {shapes} shapes"
    drawn = kinds + draw.choices(kinds, k=nodes - len(kinds))
    draw.shuffle(drawn)
    sizes = in_shares(demands, [draw.uniform(1, 4) for _ in asked])
    return Workload(
        name=f"million_{nodes}n_{demands}p",
        seed=0,
        description=f"{about}, {types} types",
        max_num_nodes=None,
        idle_timeout_s=300.0,
        node_types=catalogue,
        nodes=[
            NodeData(id=f"n{i:06d}", type=kind.type, total=kind.total, available=kind.available)
            for i, kind in enumerate(drawn)
        ],
        demands=[DemandData(shape=dict(s), count=c) for s, c in zip(asked, sizes, strict=True)],
    )


def million_figures(options: Options) -> dict[str, float]:
    """Return CPU seconds and the peak of memory; the plain names are the worse of the two objectives."""
    figures: dict[str, float] = {}
    if options.quick or not options.wants("1m_demands"):
        return figures
    rows = []
    for objective in (Objective.UTILIZATION, Objective.COST):
        table.progress(f"planner: 1m_demands, {objective.value}")
        command = [sys.executable, "-m", "bench.planner_large", objective.value]
        done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append(
            (objective.value, *(table.seconds(done[key]) for key in ("cpu_s", "mb")), f"{done['wrong']}")
        )
        for name, key in (("seconds", "cpu_s"), ("mb", "mb"), ("check", "wrong")):
            figures[f"{name}.1m_demands.{objective.value}"] = done[key]
            plain = f"{name}.1m_demands"
            figures[plain] = max(done[key], figures.get(plain, 0.0))
    table.show("planner: 1,000,000 demands", ("objective", "CPU s", "MB", "wrong answers"), rows)
    return figures


def main() -> None:
    """Plan the case in this process and prints what it took, as JSON."""
    workload, objective = million(), Objective(sys.argv[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = [plan(workload, objective) for _ in range(RUNS)]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = {"cpu_s": sorted(run.cpu_s for run in runs)[RUNS // 2], "mb": peak_mb, "mb_before": before / 1024}
    print(json.dumps({**done, "wrong": len(check.problems(workload, runs[-1].value))}))


if __name__ == "__main__":
    main()
