"""Make data/shape_bounds.json: `python -m bench.shape_bounds [CASE ...]`. Takes long; needs scipy.

A bound holds for every set of prices of the shapes: demand at these prices, less the most that each node
can hold of it, when no type can hold more than it costs. Prices come from a relaxation without whole
machines, then from column generation; what a machine holds at most is bounded by a mixed integer program,
so the bound is valid even where column generation stopped early.
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from bench import table
from bench.ours.planner import request_of
from bench.planner_shapes import COUNTS, SEEDS, ShapeBound, shapes_workload
from bench.workloads import DATA, GIB, Bag, Workload
from muster.cluster.model import Objective
from muster.cluster.planner.cost import column_generation, inventory, layout, solve_cost
from muster.cluster.planner.cost.knapsack import KnapsackItems, best_fill, weightings
from muster.cluster.planner.cost.problem import Items
from muster.cluster.planner.pack import pack

FILE = DATA / "shape_bounds.json"
NODE_POOLS = 12  # per set of resources that nodes have left
ROUNDS = 120
BOUND_EVERY = 4
LARGEST_GENERATED = 200
MOST_EXACT = 400  # nodes; with more, what each holds is bounded by a linear program
CLOSE = 0.002  # between bound and master problem: converged


class Arrays:
    """The problem in numbers near one; types that another replaces are left out."""

    def __init__(self, workload: Workload) -> None:
        names = sorted({name for demand in workload.demands for name in demand.shape})

        def table_of(bags: list[Bag]) -> np.ndarray:
            return np.array(
                [[bag.get(n, 0.0) / (GIB if n == "memory" else 1) for n in names] for bag in bags]
            )

        self.size = table_of([demand.shape for demand in workload.demands])
        self.count = np.array([float(demand.count) for demand in workload.demands])
        self.have = table_of([node_type.resources for node_type in workload.node_types])
        self.cost = np.array([node_type.price_per_hour for node_type in workload.node_types])
        self.free = table_of([node.available for node in workload.nodes]).reshape(-1, len(names))
        keep = [t for t in range(len(self.cost)) if not self._is_replaced(t)]
        self.have, self.cost = self.have[keep], self.cost[keep]

    def _is_replaced(self, index: int) -> bool:
        better = (self.cost <= self.cost[index]) & (self.have >= self.have[index]).all(axis=1)
        better[index:] &= (self.cost[index:] < self.cost[index]) | (self.have[index:] > self.have[index]).any(
            axis=1
        )
        return bool(better.any())


def pools_of(free: np.ndarray) -> list[np.ndarray]:
    """Return nodes in groups that are alike; one large node instead of a group allows more: bounds hold."""
    keys = (free > 0) @ (1 << np.arange(free.shape[1]))
    pools = []
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        order = rows[np.argsort(free[rows, -1] / np.maximum(free[rows, 0], 1e-9), kind="stable")]
        pools += [free[part] for part in np.array_split(order, min(NODE_POOLS, len(order)))]
    return pools


def relaxed(arrays: Arrays) -> np.ndarray:
    """Return prices from the relaxation: every type and every pool of nodes is one divisible machine."""
    pools = pools_of(arrays.free)
    rooms = np.vstack([arrays.have, *(pool.max(axis=0) for pool in pools)])
    item, room = np.nonzero((arrays.size[:, None] <= rooms[None] + 1e-9).all(axis=2))
    n, columns, types = len(arrays.count), arrays.size.shape[1], len(arrays.cost)
    pairs = np.arange(len(item))
    rows = [item, *(n + room * columns + r for r in range(columns))]
    values = [-np.ones(len(item)), *(arrays.size[item, r] for r in range(columns))]
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.tile(pairs, columns + 1))),
        shape=(n + len(rooms) * columns, len(item)),
    )
    buy = sparse.csr_matrix(
        (-arrays.have.ravel(), (n + np.arange(types * columns), np.repeat(np.arange(types), columns))),
        shape=(n + len(rooms) * columns, types),
    )
    limits = np.concatenate([-arrays.count, np.zeros(types * columns), *(pool.sum(axis=0) for pool in pools)])
    found = linprog(
        np.concatenate([np.zeros(len(item)), arrays.cost]),
        A_ub=sparse.hstack([matrix, buy]).tocsr(),
        b_ub=limits,
    )
    return np.maximum(-found.ineqlin.marginals[:n], 0.0)


def knapsack(
    arrays: Arrays, prices: np.ndarray, room: np.ndarray, whole: bool = True
) -> tuple[float, np.ndarray]:
    """Return an upper bound on what one machine can hold at these prices, and a load."""
    some = np.flatnonzero((arrays.size <= room + 1e-9).all(axis=1) & (prices > 1e-12))
    load = np.zeros(len(prices))
    if not len(some):
        return 0.0, load
    size = arrays.size[some]
    fits = np.divide(room, size, out=np.full_like(size, np.inf), where=size > 0).min(axis=1)
    most = np.minimum(arrays.count[some], np.floor(fits + 1e-9))
    found = milp(
        -prices[some],
        constraints=LinearConstraint(size.T, -np.inf, room),
        bounds=Bounds(0, most),
        integrality=np.full(len(some), int(whole)),
        options={"mip_rel_gap": 0.002, "time_limit": 1.0} if whole else {},
    )
    if found.x is not None:
        load[some] = np.floor(found.x + 1e-6)
    if whole and found.mip_dual_bound is None:  # stopped before it had any bound
        return knapsack(arrays, prices, room, whole=False)[0], load
    return -(found.mip_dual_bound if whole else found.fun), load


def bound_at(arrays: Arrays, prices: np.ndarray) -> tuple[float, np.ndarray, list[tuple[int, np.ndarray]]]:
    """Return the bound, the prices scaled so that no type holds more than it costs, and loads of types."""
    loose = [knapsack(arrays, prices, room, whole=False)[0] for room in arrays.have] / arrays.cost
    highest, loads = 0.0, []
    for index in np.argsort(-loose):
        if loose[index] <= highest:
            break
        value, load = knapsack(arrays, prices, arrays.have[index])
        highest = max(highest, min(value / arrays.cost[index], loose[index]))
        loads.append((int(index), load))
    prices = prices / highest
    exact = len(arrays.free) <= MOST_EXACT
    on_nodes = sum(knapsack(arrays, prices, room, exact)[0] for room in arrays.free)
    return float(arrays.count @ prices) - on_nodes, prices, loads


def patterns_of(arrays: Arrays) -> list[tuple[int, np.ndarray]]:
    """Return first columns: each shape alone on the type where it is cheapest."""
    fits = np.divide(
        arrays.have[:, None],
        arrays.size,
        out=np.full((len(arrays.cost), *arrays.size.shape), np.inf),
        where=arrays.size > 0,
    )
    alone = np.minimum(np.floor(fits.min(axis=2) + 1e-9), arrays.count)
    each = np.where(alone > 0, arrays.cost[:, None] / np.maximum(alone, 1), np.inf)
    return [
        (int(t), alone[t, i] * (np.arange(len(alone[0])) == i)) for i, t in enumerate(each.argmin(axis=0))
    ]


def filled(arrays: Arrays, prices: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return a good load of every type at these prices."""
    items = Items(arrays.size, arrays.size.shape[1])
    wanted = KnapsackItems(arrays.count, prices)
    loads = best_fill(arrays.have, items, None, wanted, weightings(items.real, 0, 13))
    return list(enumerate(loads))


def master_prices(arrays: Arrays, columns: list[tuple[int, np.ndarray]]) -> tuple[float, np.ndarray]:
    matrix = sparse.csr_matrix(np.array([load for _, load in columns]).T)
    cost = arrays.cost[[index for index, _ in columns]]
    found = linprog(cost, A_ub=-matrix, b_ub=-arrays.count)
    return found.fun, np.maximum(-found.ineqlin.marginals, 0.0)


def improved(arrays: Arrays, prices: np.ndarray) -> tuple[float, bool]:
    """Return the best bound over rounds of column generation around the best prices so far."""
    best, centre, loads = bound_at(arrays, prices)
    columns = [*patterns_of(arrays), *loads, *filled(arrays, centre)]
    for number in range(1, ROUNDS + 1):
        value, master = master_prices(arrays, columns)
        if best >= value * (1 - CLOSE):
            return best, True
        for share in (0.9, 0.6, 0.0):
            columns += filled(arrays, share * centre + (1 - share) * master)
        if number % BOUND_EVERY == 0:
            bound, scaled, loads = bound_at(arrays, 0.5 * centre + 0.5 * master)
            columns += loads
            if bound > best:
                best, centre = bound, scaled
    return best, False


def bound_of(workload: Workload) -> tuple[float, bool]:
    """Column generation runs only for small cases without nodes: others take hours, and differ little."""
    arrays = Arrays(workload)
    prices = relaxed(arrays)
    if len(arrays.free) or len(arrays.count) > LARGEST_GENERATED:
        return bound_at(arrays, prices)[0], False
    return improved(arrays, prices)


def greedy_price(workload: Workload) -> float:
    """Return what one pass of fills at first prices pays: the engine without its linear program."""
    kept = column_generation.LARGEST_MASTER, inventory._lay_out
    column_generation.LARGEST_MASTER, inventory._lay_out = 0, layout.lay_out
    try:
        return workload.price(dict(pack(request_of(workload, Objective.COST), solve_cost).launch))
    finally:
        column_generation.LARGEST_MASTER, inventory._lay_out = kept


def known_bounds() -> dict[str, ShapeBound]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, ShapeBound]) if FILE.exists() else {}


def main(wanted: list[str]) -> None:
    """Make the bounds of the cases named, else of those that have none."""
    for seed in SEEDS:
        for shapes in COUNTS:
            for with_nodes in (False, True):
                workload = shapes_workload(shapes, with_nodes, seed)
                if workload.name not in wanted if wanted else workload.name in known_bounds():
                    continue
                started = time.process_time()
                bound, converged = bound_of(workload)
                found = ShapeBound(
                    lower_bound=round(bound, 4), converged=converged, greedy=round(greedy_price(workload), 4)
                )
                table.progress(f"{workload.name}: {found}, {time.process_time() - started:.0f} s")
                everything = dict(sorted({**known_bounds(), workload.name: found}.items()))
                FILE.write_bytes(msgspec.json.format(msgspec.json.encode(everything), indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
