"""Provide planning problems as data: those of bench/data, and seeded ones of any size.

Uses neither muster's types nor Ray's; `bench.ours` and `bench.peer` translate.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

DATA = Path(__file__).parent / "data"
GIB = float(2**30)
Bag = dict[str, float]  # resource name -> quantity as users write it


class NodeTypeData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node type of a workload."""

    name: str
    resources: Bag
    min_workers: int = 0
    max_workers: int
    price_per_hour: float
    labels: dict[str, str] = {}


class NodeData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One running worker of a workload."""

    id: str
    type: str
    total: Bag
    available: Bag
    idle_ms: int = 0
    labels: dict[str, str] = {}


class DemandData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shape with its count."""

    shape: Bag
    count: int


class GangData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gang of a workload."""

    id: str
    strategy: str
    bundles: list[Bag]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One planning problem; the format is described in bench/README.md."""

    name: str
    seed: int
    description: str
    max_num_nodes: int | None
    idle_timeout_s: float
    node_types: list[NodeTypeData]
    nodes: list[NodeData]
    demands: list[DemandData]
    gangs: list[GangData] = []
    constraints: list[DemandData] = []

    @property
    def requests(self) -> int:
        """Return how many single demands wait, without gangs and constraints."""
        return sum(demand.count for demand in self.demands)

    def price(self, launch: dict[str, int]) -> float:
        """Return $/hour of these new machines."""
        prices = {node_type.name: node_type.price_per_hour for node_type in self.node_types}
        return sum(prices[name] * count for name, count in launch.items())


class RayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What Ray 2.60 did."""

    launch: dict[str, int]
    cost_per_hour: float
    cpu_s_on_a_busy_2_core_machine: float
    infeasible_requests: int = 0
    infeasible_gangs: int = 0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a workload beforehand."""

    ray_2_60: RayAnswer
    cost_lower_bound_per_hour: float | None = None


def names() -> list[str]:
    """Return every recorded workload, in alphabetical order."""
    return sorted(path.stem for path in (DATA / "workloads").glob("*.json"))


def load(name: str) -> Workload:
    """Return one recorded workload; a clear error for a name that does not exist."""
    path = DATA / "workloads" / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"no workload {name!r} in {path.parent}; choose one of: {', '.join(names())}")
    return msgspec.json.decode(path.read_bytes(), type=Workload)


def load_bounds() -> dict[str, Bounds]:
    """Return what is known, by workload name."""
    return msgspec.json.decode((DATA / "bounds.json").read_bytes(), type=dict[str, Bounds])


def half_full(
    family: str, counts: tuple[int, int], shapes: Sequence[Bag], types: Sequence[NodeTypeData]
) -> Workload:
    """(nodes, demands): nodes of `types`, filled to about half with `shapes`; demands spread over `shapes`.

    The draws depend only on the family, so every machine measures the same problem, and a larger one of the
    family has the nodes of the smaller one and more, and the same mix of demands.
    """
    node_count, demand_count = counts
    draw = random.Random(f"{family}/nodes")
    nodes = [half_full_node(f"n{i:05d}", draw.choice(types), shapes, draw) for i in range(node_count)]
    sizes = in_shares(
        demand_count, [random.Random(f"{family}/{i}").uniform(1, 4) for i in range(len(shapes))]
    )
    about = f"{node_count} half-full nodes, {demand_count} demands, {len(shapes)} shapes, {len(types)} types"
    return Workload(
        name=f"{family}_{node_count}n_{demand_count}p",
        seed=0,
        description=about,
        max_num_nodes=None,
        idle_timeout_s=300.0,
        node_types=list(types),
        nodes=nodes,
        demands=[DemandData(shape=dict(s), count=c) for s, c in zip(shapes, sizes, strict=True)],
    )


def in_shares(total: int, weights: Sequence[float]) -> list[int]:
    """Cut `total` in proportion to the weights; the parts add up to it."""
    edges = [round(total * sum(weights[:end]) / sum(weights)) for end in range(len(weights) + 1)]
    return [high - low for low, high in pairwise(edges)]


def half_full_node(
    node_id: str, node_type: NodeTypeData, shapes: Sequence[Bag], draw: random.Random
) -> NodeData:
    """Return a running node with random work on about half of its CPUs."""
    free = dict(node_type.resources)
    misses = 0
    while free["CPU"] > node_type.resources["CPU"] / 2 and misses < 8:
        shape = draw.choice(shapes)
        if any(quantity > free.get(name, 0.0) for name, quantity in shape.items()):
            misses += 1
            continue
        for name, quantity in shape.items():
            free[name] -= quantity
    return NodeData(id=node_id, type=node_type.name, total=dict(node_type.resources), available=free)


def series(nodes: int) -> Workload:
    """Return the growth series: same shapes, same types, twice the nodes and demands at each step."""
    base = load("half_500n_5000p_20s")
    shapes = [demand.shape for demand in base.demands]
    return half_full("series", (nodes, nodes * 10), shapes, base.node_types)


def large(nodes: int = 10_000, demands: int = 100_000, shapes: int = 200, types: int = 400) -> Workload:
    """Return the large case: 100,000 demands in 200 shapes, 10,000 half-full nodes, 400 node types."""
    draw = random.Random(f"large/{shapes}/{types}")
    catalogue = [random_type(i, draw) for i in range(types)]
    return half_full("large", (nodes, demands), distinct_shapes(shapes, draw), catalogue)


def unseen(number: int) -> Workload:
    """Return a small problem that is in no file: its own shapes, its own node types."""
    draw = random.Random(f"unseen/{number}")
    catalogue = [random_type(i, draw) for i in range(10)]
    return half_full(f"unseen-{number}", (40, 400), distinct_shapes(8, draw), catalogue)


def random_type(index: int, draw: random.Random) -> NodeTypeData:
    """Return a machine as clouds sell them: CPUs, memory per CPU, some GPUs, a plausible price."""
    cpus = float(draw.choice([2, 4, 8, 16, 32, 36, 48, 64, 72, 96, 128]))
    memory = cpus * draw.choice([2, 3, 4, 6, 8, 16]) * GIB
    gpus = float(draw.choice([1, 2, 4, 8])) if draw.random() < 0.3 else 0.0
    price = (0.03 * cpus + 0.004 * memory / GIB + 0.6 * gpus) * draw.uniform(0.8, 1.3)
    resources = {"CPU": cpus, "memory": memory} | ({"GPU": gpus} if gpus else {})
    return NodeTypeData(
        name=f"t{index:03d}", resources=resources, max_workers=20_000, price_per_hour=round(price, 3)
    )


def distinct_shapes(count: int, draw: random.Random) -> list[Bag]:
    """Return `count` different requests: a few CPUs, mostly with memory, some with GPUs."""
    found: dict[tuple[tuple[str, float], ...], Bag] = {}
    while len(found) < count:
        shape: Bag = {"CPU": draw.choice([0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0, 16.0])}
        if draw.random() < 0.75:
            shape["memory"] = draw.randrange(1, 65) * GIB
        if draw.random() < 0.25:
            shape["GPU"] = draw.choice([0.25, 0.5, 1.0, 2.0, 4.0])
        found.setdefault(tuple(sorted(shape.items())), shape)
    return list(found.values())
