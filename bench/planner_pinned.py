"""Plan demand that is pinned to single nodes by `node:<ip>`: each pin is a resource that one node has.

Time is the CPU time of a pass in this process; memory is the peak of a process that plans once, nodes and
interpreter included, because that is what a monitor would need. Run as a program, it is that process.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from bench import check, table
from bench.measure import Party, interleave
from bench.options import Options
from bench.ours.planner import plan, unserved
from bench.workloads import DemandData, NodeData, Workload, series
from muster.cluster.model import Objective

NODES = 10_000
COUNTS = (2000, 5000)
OBJECTIVES = (Objective.UTILIZATION, Objective.COST)


def pinned(count: int, nodes: int = NODES) -> Workload:
    """Return half-full nodes, as many demands in 20 shapes, and `count` demands for one node each."""
    base = series(nodes)
    draw = random.Random(f"pinned/{nodes}")
    names = [f"node:10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(nodes)]
    there = [with_name(node, name) for node, name in zip(base.nodes, names, strict=True)]
    order = draw.sample(range(nodes), nodes)
    sizes = [1.0, 2.0, 0.5]
    pins = [DemandData(shape={"CPU": sizes[i % 3], names[i]: 0.001}, count=1) for i in order[:count]]
    others = [DemandData(shape=each.shape, count=max(1, each.count // 10)) for each in base.demands]
    return Workload(
        name=f"pinned_{count}",
        seed=0,
        description=f"{count} demands pinned to nodes, {nodes} nodes, {sum(d.count for d in others)} others",
        max_num_nodes=None,
        idle_timeout_s=300.0,
        node_types=base.node_types,
        nodes=there,
        demands=[*others, *pins],
    )


def with_name(node: NodeData, name: str) -> NodeData:
    return NodeData(
        id=node.id,
        type=node.type,
        total={**node.total, name: 1.0},
        available={**node.available, name: 1.0},
    )


def pinned_figures(options: Options) -> dict[str, float]:
    """Return CPU seconds, peak MB and wrong answers; the plain name is the worse of the two objectives."""
    figures: dict[str, float] = {}
    problems: list[str] = []
    rows = []
    for count in COUNTS:
        if not options.wants(f"pinned_{count}"):
            continue
        table.progress(f"planner: pinned_{count}")
        workload = pinned(count)
        parties = [party(workload, objective, options) for objective in OBJECTIVES]
        interleave(*parties)
        problems += [f"{each.name}: {p}" for each in parties for p in check.problems(workload, each.value)]
        seconds = {each.name: each.cpu_s for each in parties}
        peaks = {objective.value: peak_mb(count, objective) for objective in OBJECTIVES}
        for what, values in (("seconds", seconds), ("mb", peaks)):
            figures[f"{what}.pinned_{count}"] = max(values.values())
            figures |= {f"{what}.pinned_{count}.{name}": value for name, value in values.items()}
        rows += [
            (workload.description, each.name, table.seconds(each.cpu_s), f"{peaks[each.name]:.0f}")
            for each in parties
        ]
    if rows:
        table.show("planner: pinned demand", ("problem", "objective", "CPU s", "peak MB"), rows)
        figures["check.pinned"] = len(problems)
    for problem in problems:
        table.note(f"WRONG ANSWER: {problem}")
    return figures


def party(workload: Workload, objective: Objective, options: Options) -> Party:
    budget_s, runs = (0.6, 3) if options.quick else (5.0, 7)
    return Party(objective.value, lambda: plan(workload, objective), budget_s, runs)


def peak_mb(count: int, objective: Objective) -> float:
    """Return the peak resident memory of a separate process that plans once."""
    command = [sys.executable, "-m", "bench.planner_pinned", str(count), objective.value]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["mb"])


def main(count: int, objective: Objective) -> None:
    workload = pinned(count)
    before = peak_of_this_process_mb()
    timed = plan(workload, objective)
    after = peak_of_this_process_mb()
    print(json.dumps({"mb": after, "before": before, "s": timed.cpu_s, "unserved": unserved(timed.value)}))


def peak_of_this_process_mb() -> float:
    """Unlike ru_maxrss, this does not start from the size of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(int(sys.argv[1]), Objective(sys.argv[2]))
