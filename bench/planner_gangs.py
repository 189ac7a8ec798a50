"""Measure gangs: many different ones on different nodes, many equal ones, and some under tight limits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from bench import check, table
from bench.measure import Party, calibration_s, interleave
from bench.options import Options
from bench.ours.planner import plan, unserved_in_all
from bench.workloads import (
    GIB,
    Bag,
    DemandData,
    GangData,
    NodeData,
    NodeTypeData,
    Workload,
    distinct_shapes,
    random_type,
)
from muster.cluster.model import Objective

STRATEGIES = ("PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK")


def mixed(gangs: int, nodes: int = 10_000) -> Workload:
    """Return gangs of every strategy with 2 to 12 bundles, no two bundles and no two nodes alike."""
    draw = random.Random("gangs/mixed")
    types = [random_type(index, draw) for index in range(20)]
    return gang_workload(
        f"gangs_mixed_{gangs}",
        types,
        differing_nodes(nodes, types, draw),
        [
            GangData(
                id=f"{i:04x}",
                strategy=draw.choice(STRATEGIES),
                bundles=[some_bundle(draw) for _ in range(draw.randint(2, 12))],
            )
            for i in range(gangs)
        ],
    )


def equal_packs(gangs: int) -> Workload:
    """Return as many equal gangs of eight bundles as nodes, which differ."""
    draw = random.Random("gangs/pack")
    types = [random_type(index, draw) for index in range(20)]
    bundles = [{"CPU": 1.0, "memory": 2 * GIB}] * 8
    wanted = [GangData(id=f"{i:04x}", strategy="PACK", bundles=bundles) for i in range(gangs)]
    return gang_workload(f"gangs_pack_{gangs}", types, differing_nodes(gangs, types, draw), wanted)


def equal_spreads(gangs: int, nodes: int) -> Workload:
    """Return equal gangs of four bundles on different nodes each, on equal nodes."""
    machine = NodeTypeData(
        name="m", resources={"CPU": 16.0, "memory": 64 * GIB}, max_workers=20_000, price_per_hour=0.8
    )
    same = [
        NodeData(id=f"n{i:05d}", type="m", total=machine.resources, available=machine.resources)
        for i in range(nodes)
    ]
    wanted = [
        GangData(id=f"{i:04x}", strategy="STRICT_SPREAD", bundles=[{"CPU": 1.0}] * 4) for i in range(gangs)
    ]
    return gang_workload(f"gangs_spread_{gangs}", [machine], same, wanted)


def capped(number: int = 0, gangs: int = 47, nodes: int = 16, types: int = 8) -> Workload:
    """Return a tiny cluster that may not grow as much as its gangs want."""
    draw = random.Random(f"gangs/capped/{number}")
    catalogue = [random_type(index, draw) for index in range(types)]
    there = differing_nodes(nodes, catalogue, draw)
    counts = Counter(node.type for node in there)
    limited = [with_room(t, counts[t.name] + draw.randint(0, 2)) for t in catalogue]
    shapes = distinct_shapes(12, draw)
    wanted = [
        GangData(
            id=f"{i:04x}",
            strategy=draw.choice(STRATEGIES),
            bundles=draw.choices(shapes, k=draw.randint(2, 8)),
        )
        for i in range(gangs)
    ]
    return gang_workload(f"gangs_capped_{number}", limited, there, wanted, most=nodes + 6)


def unseen_gangs(number: int) -> Workload:
    """Return a small problem with gangs of every strategy, some of them equal, on nodes that all are idle.

    Ray shows which nodes it planned something onto only by not ending them, so every node is idle for long.
    """
    draw = random.Random(f"gangs/unseen/{number}")
    types = [random_type(index, draw) for index in range(draw.randint(1, 6))]
    kinds = differing_nodes(draw.randint(1, 30), types[: draw.randint(1, len(types))], draw)
    nodes = [idle_for_long(node, i) for i, node in enumerate(draw.choices(kinds, k=draw.randint(0, 40)))]
    counts = Counter(node.type for node in nodes)
    types = [with_room(t, counts[t.name] + draw.choice([0, 1, 3, 50])) for t in types]
    pool = [some_bundle(draw) for _ in range(4)]
    gangs = [
        GangData(id=f"{index:04x}", strategy=draw.choice(STRATEGIES), bundles=some_bundles(draw, pool))
        for index in range(draw.randint(1, 25))
    ]
    demands = [DemandData(shape=shape, count=draw.randint(0, 30)) for shape in distinct_shapes(3, draw)]
    most = draw.choice([None, None, len(nodes) + draw.randint(1, 10)])
    return gang_workload(f"gangs_unseen_{number}", types, nodes, gangs, demands, most)


def some_bundles(draw: random.Random, pool: list[Bag]) -> list[Bag]:
    if draw.random() < 0.3:
        return [draw.choice(pool)] * draw.randint(1, 8)
    return [
        draw.choice(pool) if draw.random() < 0.3 else some_bundle(draw) for _ in range(draw.randint(1, 8))
    ]


def idle_for_long(node: NodeData, number: int) -> NodeData:
    return msgspec.structs.replace(node, id=f"n{number:05d}", idle_ms=1_000_000)


def with_room(node_type: NodeTypeData, most: int) -> NodeTypeData:
    return msgspec.structs.replace(node_type, max_workers=most)


def gang_workload(
    name: str,
    types: list[NodeTypeData],
    nodes: list[NodeData],
    gangs: list[GangData],
    demands: list[DemandData] | None = None,
    most: int | None = None,
) -> Workload:
    return Workload(
        name=name,
        seed=0,
        description=f"{len(gangs)} gangs, {len(nodes)} nodes, {len(types)} types",
        max_num_nodes=most,
        idle_timeout_s=300.0,
        node_types=types,
        nodes=nodes,
        demands=demands or [],
        gangs=gangs,
    )


def differing_nodes(count: int, types: list[NodeTypeData], draw: random.Random) -> list[NodeData]:
    """Return running nodes of which no two have the same left."""
    found: dict[tuple[object, ...], NodeData] = {}
    while len(found) < count:
        node_type = draw.choice(types)
        free = {name: some_of(name, quantity, draw) for name, quantity in node_type.resources.items()}
        node = NodeData(
            id=f"n{len(found):05d}", type=node_type.name, total=node_type.resources, available=free
        )
        found.setdefault((node_type.name, *free.values()), node)
    return list(found.values())


def some_of(name: str, quantity: float, draw: random.Random) -> float:
    """Return a part of it in quarters (of a CPU, of a GiB), so that no rounding decides a tie."""
    quarter = GIB / 4 if name == "memory" else 0.25
    return draw.randint(0, int(quantity / quarter)) * quarter


def some_bundle(draw: random.Random) -> Bag:
    bundle: Bag = {"CPU": draw.randint(1, 32) / 4, "memory": draw.randint(1, 256) * GIB / 4}
    if draw.random() < 0.15:
        bundle["GPU"] = draw.choice([0.25, 0.5, 1.0, 2.0])
    return bundle


CAPPED = 8  # problems; the slowest counts
Maker = Callable[[], Sequence[Workload]]
CASES: tuple[tuple[str, Objective, Maker], ...] = (
    ("gangs_mixed_200", Objective.UTILIZATION, lambda: [mixed(200)]),
    ("gangs_mixed_1000", Objective.UTILIZATION, lambda: [mixed(1_000)]),
    ("gangs_pack_2000", Objective.UTILIZATION, lambda: [equal_packs(2_000)]),
    ("gangs_spread_5000", Objective.UTILIZATION, lambda: [equal_spreads(5_000, 5_000)]),
    ("gangs_capped", Objective.COST, lambda: [capped(number) for number in range(CAPPED)]),
)


def gang_figures(options: Options) -> dict[str, float]:
    """Return CPU seconds of each case, and the number of wrong answers."""
    figures: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    wrong = 0
    for name, objective, make in CASES:
        if not options.wants(name) or (options.quick and name.endswith("000")):
            continue
        table.progress(f"planner: {name}")
        for workload in make():
            party = gang_party(workload, objective, options)
            wrong += len(wrong_answers(workload, party))
            figures[f"seconds.{name}"] = max(party.cpu_s, figures.get(f"seconds.{name}", 0.0))
            lost = f"{unserved_in_all(party.value)}"
            rows.append(
                (workload.name, workload.description, objective.value, table.seconds(party.cpu_s), lost)
            )
    if rows:
        columns = ("case", "problem", "objective", "CPU s", "bundles without a place")
        table.show("planner: gangs", columns, rows)
        figures["check.gang_problems"] = wrong
        figures["seconds.calibration"] = calibration_s()
        table.note(
            f"a loop of 5,000,000 additions took {figures['seconds.calibration']:.2f} CPU s in this run"
        )
    return figures


def gang_party(workload: Workload, objective: Objective, options: Options) -> Party:
    party = Party(workload.name, lambda: plan(workload, objective), 1.0 if options.quick else 30.0, 5)
    interleave(party)
    return party


def wrong_answers(workload: Workload, party: Party) -> list[str]:
    found = check.problems(workload, party.value)
    for problem in found:
        table.note(f"WRONG ANSWER: {workload.name}: {problem}")
    return found
