"""Measure `cost` where shapes are many and requests of each few: against a bound and other planners.

Bounds and greedy prices are in data/shape_bounds.json; `python -m bench.shape_bounds` makes them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from bench import check, table
from bench.measure import Party, Timed, interleave
from bench.options import Options
from bench.ours.planner import plan, unserved_in_all
from bench.workloads import DATA, GIB, Bag, DemandData, NodeTypeData, Workload, half_full_node
from muster.cluster.model import Objective

COUNTS = (50, 100, 200, 399, 1000, 2000)
QUICK_COUNTS = (50, 100)
SEEDS = (1, 2)
OF_EACH = 20
TYPES = 50
TIMED = {"seconds.shapes_400": (400, False), "seconds.shapes_2000_nodes": (2000, True)}
RUNS = 5
CPUS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0)


class ShapeBound(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one case beforehand, in $/hour."""

    lower_bound: float
    converged: bool  # False: column generation stopped early; the bound holds, but is lower than the LP's
    greedy: float  # one pass of fills at first prices, without a linear program


@dataclass(frozen=True)
class ShapeCase:
    """One problem with both answers."""

    workload: Workload
    bound: ShapeBound
    cost: Timed
    utilization: Timed

    def price(self, answer: Timed) -> float:
        return self.workload.price(dict(answer.value.launch))

    @property
    def ratio(self) -> float:
        return self.price(self.cost) / self.bound.lower_bound

    @property
    def over_best(self) -> float:
        """Return cost / the cheaper of greedy and utilization; an answer that serves less does not count."""
        others = [self.bound.greedy]
        if unserved_in_all(self.utilization.value) <= unserved_in_all(self.cost.value):
            others.append(self.price(self.utilization))
        return self.price(self.cost) / min(others)


def case_name(shapes: int, with_nodes: bool) -> str:
    return f"{shapes}_nodes" if with_nodes else f"{shapes}"


def shapes_workload(shapes: int, with_nodes: bool, seed: int) -> Workload:
    """Return `shapes` different requests, 20 of each, 50 types, and as many different half-full nodes."""
    draw = random.Random(f"shapes/{seed}")
    types = [shape_type(index, draw) for index in range(TYPES)]
    found: dict[tuple[tuple[str, float], ...], Bag] = {}
    while len(found) < shapes:
        shape = random_shape(draw)
        if any(holds(node_type.resources, shape) for node_type in types):
            found.setdefault(tuple(sorted(shape.items())), shape)
    bags = list(found.values())
    draw = random.Random(f"shapes/{seed}/{shapes}/nodes")
    nodes = {}
    while with_nodes and len(nodes) < shapes:
        node = half_full_node(f"n{len(nodes):05d}", draw.choice(types), bags, draw)
        nodes.setdefault(tuple(sorted(node.available.items())), node)
    return Workload(
        name=f"shapes_{case_name(shapes, with_nodes)}/{seed}",
        seed=seed,
        description=f"{shapes} shapes, {OF_EACH} of each, {len(nodes)} half-full nodes, {TYPES} types",
        max_num_nodes=None,
        idle_timeout_s=300.0,
        node_types=types,
        nodes=list(nodes.values()),
        demands=[DemandData(shape=dict(bag), count=OF_EACH) for bag in bags],
    )


def shape_type(index: int, draw: random.Random) -> NodeTypeData:
    """Return a machine as clouds sell them: 2, 4 or 8 GiB per CPU, a fifth of them with GPUs."""
    cpus = float(draw.choice([2, 4, 8, 16, 32, 48, 64, 96]))
    memory = cpus * draw.choice([2, 4, 8]) * GIB
    gpus = float(draw.choice([1, 2, 4, 8])) if draw.random() < 0.2 else 0.0
    price = (0.03 * cpus + 0.004 * memory / GIB + 0.6 * gpus) * draw.uniform(0.85, 1.2)
    resources = {"CPU": cpus, "memory": memory} | ({"GPU": gpus} if gpus else {})
    return NodeTypeData(
        name=f"t{index:03d}", resources=resources, max_workers=20_000, price_per_hour=round(price, 3)
    )


def random_shape(draw: random.Random) -> Bag:
    shape: Bag = {"CPU": draw.choice(CPUS)}
    if draw.random() < 0.8:
        shape["memory"] = draw.randrange(1, 48 * 8) * GIB / 8
    if draw.random() < 0.15:
        shape["GPU"] = draw.choice([0.25, 0.5, 1.0, 2.0, 4.0])
    return shape


def holds(room: Bag, shape: Bag) -> bool:
    return all(quantity <= room.get(name, 0.0) for name, quantity in shape.items())


def load_shape_bounds() -> dict[str, ShapeBound]:
    return msgspec.json.decode((DATA / "shape_bounds.json").read_bytes(), type=dict[str, ShapeBound])


def shape_figures(options: Options) -> tuple[dict[str, float], list[str]]:
    """Measure, print the table; return the figures and what is wrong with the answers."""
    counts = QUICK_COUNTS if options.quick else COUNTS
    wanted = [
        (n, nodes)
        for n in counts
        for nodes in (False, True)
        if options.wants(f"shapes_{case_name(n, nodes)}")
    ]
    cases = {pair: [measured(*pair, seed) for seed in SEEDS] for pair in wanted}
    figures: dict[str, float] = {}
    for pair, found in cases.items():
        figures[f"shapes_ratio.{case_name(*pair)}"] = max(case.ratio for case in found)
        figures[f"shapes_over_best.{case_name(*pair)}"] = max(case.over_best for case in found)
    show([case for found in cases.values() for case in found])
    problems = [
        f"{case.workload.name}: {problem}"
        for found in cases.values()
        for case in found
        for problem in (*check.problems(case.workload, case.cost.value), *left_out(case))
    ]
    return {**figures, **timed_figures(options)}, problems


def left_out(case: ShapeCase) -> list[str]:
    missing = unserved_in_all(case.cost.value)
    return [f"{missing} requests left unserved"] if missing else []


def measured(shapes: int, with_nodes: bool, seed: int) -> ShapeCase:
    workload = shapes_workload(shapes, with_nodes, seed)
    table.progress(f"planner: {workload.name}")
    return ShapeCase(
        workload,
        load_shape_bounds()[workload.name],
        plan(workload, Objective.COST),
        plan(workload, Objective.UTILIZATION),
    )


def timed_figures(options: Options) -> dict[str, float]:
    """Return medians of five."""
    figures: dict[str, float] = {}
    for name, (shapes, with_nodes) in TIMED.items():
        if options.quick or not options.wants(f"shapes_{case_name(shapes, with_nodes)}"):
            continue
        workload = shapes_workload(shapes, with_nodes, SEEDS[0])
        party = Party(name, lambda workload=workload: plan(workload, Objective.COST), 1e9, RUNS)
        interleave(party)
        figures[name] = party.cpu_s
    if figures:
        table.note(", ".join(f"{name}: {seconds:.3f} CPU s" for name, seconds in figures.items()))
    return figures


def show(cases: list[ShapeCase]) -> None:
    if not cases:
        return
    columns = (
        "case",
        "bound $/h",
        "converged",
        "cost",
        "greedy",
        "utilization",
        "cost CPU s",
        "utilization CPU s",
    )
    rows = [
        (
            case.workload.name,
            f"{case.bound.lower_bound:,.2f}",
            "yes" if case.bound.converged else "no",
            f"{case.ratio:.4f}",
            f"{case.bound.greedy / case.bound.lower_bound:.4f}",
            f"{case.price(case.utilization) / case.bound.lower_bound:.4f}",
            table.seconds(case.cost.cpu_s),
            table.seconds(case.utilization.cpu_s),
        )
        for case in cases
    ]
    table.show("planner: many shapes, prices over the bound", columns, rows)
