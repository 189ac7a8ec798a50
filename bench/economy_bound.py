"""Compute what moving trials could save at most in the mixed workload: `python -m bench.economy_bound 3`.

Every ten seconds the trials that run without consolidation are packed again onto the cheapest machines, in
parts of machines and for nothing. Boots and the head are paid as they were. No rule can save more with the
same trials; what differs between two runs of a scheduler is not bounded by this.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from scipy.optimize import linprog

from bench import table
from bench.economy import ON_DEMAND, UNLIMITED
from bench.economy_scenario import Scenario
from muster.base.resources import Resources
from muster.cluster.model import NodeType
from muster.sim.joint.run import JointRun

Work = tuple[tuple[Resources, float], ...]  # shape -> how much of it is done per second, at speed 1


class CheapestPacking:
    """Answers what machines for some work cost per hour at least."""

    def __init__(self, types: Sequence[NodeType]) -> None:
        self._types = types
        self.price_per_hour = cache(self._solve)

    def _solve(self, work: Work) -> float:
        """Solve for machines of each type, and for the trials of each shape on each type, in parts."""
        types, shapes = self._types, [shape for shape, _ in work]
        if not shapes:
            return 0.0
        n, columns = len(types), len(types) * (1 + len(shapes))
        upper, equal = [], []
        for t, known in enumerate(types):
            have = known.resources.to_floats()
            for name in dict.fromkeys(name for shape in shapes for name in shape):
                row = [0.0] * columns
                row[t] = -have.get(name, 0.0)
                for s, shape in enumerate(shapes):
                    row[n + s * n + t] = shape.to_floats().get(name, 0.0)
                upper.append(row)
        for s, shape in enumerate(shapes):
            row = [0.0] * columns
            for t, known in enumerate(types):
                row[n + s * n + t] = known.speed if known.resources.holds(shape) else 0.0
            equal.append(row)
        prices = [known.price_per_hour or 0.0 for known in types] + [0.0] * (columns - n)
        done = [rate for _, rate in work]
        return float(linprog(prices, A_ub=upper, b_ub=[0.0] * len(upper), A_eq=equal, b_eq=done).fun)


def most_saved(scenario: Scenario, seed: int) -> float:
    """Return the part of the cost of one start that moving trials could save at most."""
    switches = replace(ON_DEMAND, consolidates=False)
    cluster = scenario.cluster(switches, seed)
    run = JointRun(cluster, scenario.experiments("mixed", seed), speed_of=scenario.speeds.__getitem__)
    packing = CheapestPacking([t for t in scenario.spec(switches).node_types if t.name in scenario.speeds])
    hourly: list[float] = []

    def note() -> None:
        rates = Counter[Resources]()
        for node in cluster.runtime.live_nodes():
            for task in node.running.values():
                rates[task.like.shape] += scenario.speeds[node.machine.node_type]
        hourly.append(packing.price_per_hour(tuple((shape, round(rate, 6)) for shape, rate in rates.items())))

    run.after_tick = note
    result = run.run()
    machines = cluster.cloud.machines.values()
    workers = sum(m.price_per_hour for m in machines if m.node_type in scenario.speeds)
    head = sum(m.price_per_hour for m in machines if m.node_type not in scenario.speeds)
    paid_hours = sum(hourly) * scenario.tick_s + workers * scenario.boot.expected_s + head * result.end_s
    return 1.0 - paid_hours / 3600 / result.cost


def main() -> None:
    """Print the bound of every start and their median."""
    logging.getLogger("muster").setLevel(logging.ERROR)
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found = [most_saved(Scenario(most_nodes=UNLIMITED), seed) for seed in range(1, starts + 1)]
    rows = [[str(seed), f"{share:.1%}"] for seed, share in enumerate(found, 1)]
    table.show(
        "what moving trials could save at most",
        ["start", "of the $"],
        [*rows, ["median", f"{median(found):.1%}"]],
    )


if __name__ == "__main__":
    main()
