"""Planning problems for the cost engine's tests: recorded workloads, and seeded ones of any size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, NodeType, Strategy
from muster.cluster.planner.request import PackNode, PackProblem, PackSolution, TypeOffer

DATA = Path(__file__).parents[4] / "bench" / "data"
GIB = 2**30


def bounds() -> dict[str, float]:
    """Lower bound on $/hour by workload; only those that have one."""
    known = msgspec.json.decode((DATA / "bounds.json").read_bytes())
    key = "cost_lower_bound_per_hour"
    return {name: facts[key] for name, facts in known.items() if key in facts}


def recorded(name: str) -> PackProblem:
    """A workload of bench/data: its nodes run, limits count them."""
    data: dict[str, Any] = msgspec.json.decode((DATA / "workloads" / f"{name}.json").read_bytes())
    there = [node["type"] for node in data["nodes"]]
    types = [
        NodeType(
            name=t["name"],
            resources=Resources.of(t["resources"]),
            max_nodes=t["max_workers"],
            labels=t["labels"],
            price_per_hour=t["price_per_hour"],
        )
        for t in data["node_types"]
    ]
    limit = data["max_num_nodes"]
    return PackProblem(
        nodes=tuple(
            PackNode(
                key=n["id"],
                node_type=n["type"],
                total=Resources.of(n["total"]),
                available=Resources.of(n["available"]),
                labels=n["labels"],
            )
            for n in data["nodes"]
        ),
        offers=tuple(TypeOffer(node_type=t, room=t.max_nodes - there.count(t.name)) for t in types),
        room=None if limit is None else limit - len(there),
        demands=_demands(data["demands"]),
        constraints=_demands(data["constraints"]),
        gangs=tuple(
            Gang(
                gang_id=g["id"],
                strategy=Strategy(g["strategy"]),
                options=(tuple(Demand(shape=Resources.of(b)) for b in g["bundles"]),),
            )
            for g in data["gangs"]
        ),
    )


def _demands(rows: list[dict[str, Any]]) -> tuple[Demand, ...]:
    return tuple(Demand(shape=Resources.of(row["shape"]), count=row["count"]) for row in rows)


def price(problem: PackProblem, solution: PackSolution) -> float:
    """$/hour of the new machines."""
    prices = {offer.node_type.name: offer.node_type.price_per_hour or 0.0 for offer in problem.offers}
    return sum(prices[name] * count for name, count in solution.launch.items())


def unplaced(solution: PackSolution) -> int:
    return sum(item.amount for item in solution.unplaced)


def random_fleet(
    seed: int, sizes: tuple[int, int, int, int], extra: tuple[str, ...] = ("GPU",)
) -> PackProblem:
    """sizes = (shapes, types, demands, nodes); `extra` are scarce resources that some types and shapes have.

    Machines are priced near the sum of their parts, with luck; nodes are free to a random part.
    """
    shape_count, type_count, demand_count, node_count = sizes
    draw = random.Random(f"{seed}/{sizes}/{extra}")
    types = [_random_type(i, extra, draw) for i in range(type_count)]
    types.append(_largest(types, extra))
    shapes: dict[Resources, None] = {}
    while len(shapes) < shape_count:
        shapes[_random_shape(extra, draw)] = None
    cuts = sorted(draw.sample(range(1, demand_count), len(shapes) - 1))
    counts = [high - low for low, high in zip([0, *cuts], [*cuts, demand_count], strict=True)]
    return PackProblem(
        nodes=tuple(_random_node(i, draw.choice(types), draw) for i in range(node_count)),
        offers=tuple(TypeOffer(node_type=t, room=100_000) for t in types),
        room=None,
        demands=tuple(Demand(shape=s, count=c) for s, c in zip(shapes, counts, strict=True)),
    )


def _random_type(index: int, extra: tuple[str, ...], draw: random.Random) -> NodeType:
    cpus = draw.choice([2, 4, 8, 16, 32, 48, 64, 96, 128])
    has: dict[str, float] = {"CPU": cpus, "memory": cpus * draw.choice([2, 3, 4, 6, 8]) * GIB}
    has |= {name: draw.choice([1, 2, 4, 8]) for name in extra if draw.random() < 0.35}
    cost = sum(q * {"CPU": 0.03, "memory": 0.004 / GIB}.get(name, 0.5) for name, q in has.items())
    return NodeType(
        name=f"t{index:03d}",
        resources=Resources.of(has),
        price_per_hour=round(cost * draw.uniform(0.7, 1.4), 3),
    )


def _largest(types: list[NodeType], extra: tuple[str, ...]) -> NodeType:
    """A dear machine that holds every shape, so that every request can be served."""
    has = {"CPU": 32, "memory": 256 * GIB} | dict.fromkeys(extra, 4)
    dearest = max(t.price_per_hour or 0.0 for t in types)
    return NodeType(name="all", resources=Resources.of(has), price_per_hour=round(dearest * 1.2 + 3, 3))


def _random_shape(extra: tuple[str, ...], draw: random.Random) -> Resources:
    shape: dict[str, float] = {"CPU": draw.choice([0.25, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 12])}
    if draw.random() < 0.75:
        shape["memory"] = draw.randrange(1, 33) * GIB
    shape |= {name: draw.choice([0.25, 0.5, 1, 2]) for name in extra if draw.random() < 0.2}
    return Resources.of(shape)


def _random_node(index: int, of: NodeType, draw: random.Random) -> PackNode:
    """About half of it is free, in quarters of a unit or of a GiB."""
    free = {}
    for name, units in of.resources.items():
        grain = (GIB if name == "memory" else 1) * 2_500
        free[name] = min(units, round(units // grain * draw.uniform(0.2, 0.8)) * grain)
    return PackNode(key=f"n{index}", node_type=of.name, total=of.resources, available=Resources(free))
