"""The `cost` engine: serve the most requests, then pay the least. Called by `pack` and by `muster plan`.

Plans the two books (demand on what is free, constraints on totals) in both orders, machines of the first
being free for the second, and keeps the cheaper. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from muster.base.resources import ItemKey
from muster.cluster.binpack.cost.allocate import GangRequest, Served, serve
from muster.cluster.binpack.cost.gangs import bundle_count, forms_of
from muster.cluster.binpack.cost.inventory import Inventory, grow, growth_limit, inventory_of
from muster.cluster.binpack.cost.problem import Ask, ask_of, machine_costs, selectors_of
from muster.cluster.binpack.request import Book, PackProblem, PackSolution, Placement, Unplaced
from muster.cluster.model import Demand, Gang, Strategy


class CostOutcome(NamedTuple):
    """Both books, and the machines bought: bin n + i is machine i when the problem has n nodes."""

    books: Mapping[Book, Served]
    machines: Sequence[int]  # index into PackProblem.offers
    grown: Sequence[int]
    buyers: Sequence[Book]  # the books that bought any
    cost: float

    def unserved(self, problem: PackProblem) -> int:
        short = sum(sum(served.short.values()) for served in self.books.values())
        gangs = sum(bundle_count(problem.gangs[g]) for served in self.books.values() for g in served.failed)
        return short + gangs


class Holding(NamedTuple):
    """`amount` pieces of one item on one node or new machine; a piece is a request, a bundle of a gang or,
    with STRICT_PACK, several bundles in one."""

    book: Book
    is_gang: bool
    item: int
    shape: ItemKey  # of one piece
    bundles: int  # that one piece stands for
    amount: int


class Detail(NamedTuple):
    """The answer with the load of every node and of every new machine on its own."""

    solution: PackSolution
    nodes: tuple[tuple[Holding, ...], ...]  # one per node of the problem
    machines: tuple[tuple[str, tuple[Holding, ...]], ...]  # type and load of each new machine


def solution_of(problem: PackProblem, outcome: CostOutcome) -> PackSolution:
    names = [offer.node_type.name for offer in problem.offers]
    launch: dict[str, int] = dict.fromkeys(names, 0)
    for index in outcome.machines:
        launch[names[index]] += 1
    limits = {offer.node_type.name: offer.node_type for offer in problem.offers}
    resize = {row: growth_limit(problem.nodes[row], limits) for row in sorted(outcome.grown)}
    return PackSolution(
        launch={name: count for name, count in launch.items() if count},
        placements=tuple(_placements(problem, outcome)),
        unplaced=tuple(_unplaced(problem, outcome)),
        # A machine that is still coming is simply asked for at its full size.
        resize={row: size for row, size in resize.items() if problem.nodes[row].runs},
    )


def detail_of(problem: PackProblem, outcome: CostOutcome) -> Detail:
    nodes = len(problem.nodes)
    held: list[list[Holding]] = [[] for _ in range(nodes + len(outcome.machines))]
    for book, served in outcome.books.items():
        demands = problem.demands if book is Book.DEMAND else problem.constraints
        for is_gang, item, where, amount, part in served.entries:
            shape = demands[item].shape.positive().key if part is None else part.ask.shape
            bundles = 1 if part is None else part.bundles
            held[where].append(Holding(book, is_gang, item, shape, bundles, amount // bundles))
    names = [problem.offers[index].node_type.name for index in outcome.machines]
    loads = [tuple(load) for load in held]
    machines = tuple(zip(names, loads[nodes:], strict=True))
    return Detail(solution_of(problem, outcome), tuple(loads[:nodes]), machines)


def _placements(problem: PackProblem, outcome: CostOutcome) -> list[Placement]:
    """On nodes as they are; on new machines summed up by type."""
    nodes = len(problem.nodes)
    names = [offer.node_type.name for offer in problem.offers]
    # Where a bin is reported: a node under its own number, a machine under -1 - its type.
    place = [*range(nodes), *(-1 - index for index in outcome.machines)]
    found: list[Placement] = []
    for book, served in outcome.books.items():
        sums: dict[tuple[bool, int, int], int] = {}
        for is_gang, item, where, amount, _ in served.entries:
            key = (is_gang, item, place[where])
            sums[key] = sums.get(key, 0) + amount
        for (is_gang, item, at), amount in sums.items():
            if at >= 0:
                found.append(Placement(book, is_gang, item, at, problem.nodes[at].node_type, amount))
            else:
                found.append(Placement(book, is_gang, item, -1, names[-1 - at], amount))
    return found


def _unplaced(problem: PackProblem, outcome: CostOutcome) -> list[Unplaced]:
    missing = []
    for book, served in outcome.books.items():
        missing += [Unplaced(book, False, item, amount) for item, amount in sorted(served.short.items())]
        sizes = [(gang, bundle_count(problem.gangs[gang])) for gang in served.failed]
        missing += [Unplaced(book, True, gang, size) for gang, size in sizes if size]
    return missing


def narrowed(demand: Demand, stock: Inventory) -> Demand:
    """The demand with its first selector under which some node or type could hold it."""
    if len(demand.selectors) < 2:
        return demand
    for selector in demand.selectors:
        narrow = replace(demand, selectors=(selector,))
        if stock.holds(ask_of(narrow)):
            return narrow
    return demand


def narrowed_gang(gang: Gang, stock: Inventory) -> Gang:
    """Every bundle narrowed; strict packing merges by the selectors as asked, so those stay."""
    if gang.strategy is Strategy.STRICT_PACK:
        return gang
    options = tuple(tuple(narrowed(demand, stock) for demand in option) for option in gang.options)
    return replace(gang, options=options)


SAME_COST = 1e-6  # relative: two plans this close cost the same


def solve_cost(problem: PackProblem) -> PackSolution:
    """Where the demand goes at the least cost."""
    return solution_of(problem, _best(problem))


def solve_detailed(problem: PackProblem) -> Detail:
    """The same with the load of every single node and new machine."""
    return detail_of(problem, _best(problem))


def _best(problem: PackProblem) -> CostOutcome:
    """The plain plan, unless one that also grants every wish is as good."""
    plain = _cheaper_order(problem, wishes=False)
    if not _has_wishes(problem):
        return plain
    wished = _cheaper_order(problem, wishes=True)
    as_good = wished.unserved(problem) <= plain.unserved(problem)
    return wished if as_good and wished.cost <= plain.cost * (1 + SAME_COST) else plain


def _has_wishes(problem: PackProblem) -> bool:
    asked = [
        *problem.demands,
        *problem.constraints,
        *(d for g in problem.gangs for o in g.options for d in o),
    ]
    choosy = any(len(selectors_of(demand.selectors)) > 1 for demand in asked)
    return choosy or any(gang.strategy is Strategy.SPREAD for gang in problem.gangs)


def _cheaper_order(problem: PackProblem, wishes: bool) -> CostOutcome:
    first = _in_order(problem, (Book.DEMAND, Book.CONSTRAINT), wishes)
    if len(first.buyers) < 2 and not first.unserved(problem):
        return first  # at most one book buys, and that for itself: the other order buys no less
    if len(first.books) < 2:
        return first
    second = _in_order(problem, (Book.CONSTRAINT, Book.DEMAND), wishes)
    ranks = [(outcome.unserved(problem), outcome.cost) for outcome in (first, second)]
    return first if ranks[0] <= ranks[1] else second


def _in_order(problem: PackProblem, order: Sequence[Book], wishes: bool) -> CostOutcome:
    """Machines and growth of the first book are there for the second."""
    books: dict[Book, Served] = {}
    machines: list[int] = []
    grown: list[int] = []
    buyers: list[Book] = []
    for book in order:
        demands = problem.demands if book is Book.DEMAND else problem.constraints
        gangs = problem.gangs if book is Book.DEMAND else ()
        if not demands and not gangs:
            continue
        stock = inventory_of(problem, book, _asks(demands, gangs))
        grow(stock, grown)
        stock.add_machines(np.array(machines, dtype=np.int64))
        if wishes:
            demands = tuple(narrowed(demand, stock) for demand in demands)
            gangs = tuple(narrowed_gang(gang, stock) for gang in gangs)
        forms = [forms_of(gang, _values(problem, gang), wishes) for gang in gangs]
        books[book], stock = serve(stock, GangRequest(demands, gangs, forms))
        if len(stock.machines) > len(machines):
            buyers.append(book)
        machines, grown = stock.machines, grown + stock.grown
    cost = float(machine_costs(problem.offers)[machines].sum())
    return CostOutcome(books, machines, grown, buyers, cost)


def _asks(demands: Sequence[Demand], gangs: Sequence[Gang]) -> list[Ask]:
    """Every class anybody could ask for; strictly packed bundles also as one."""
    asks = dict.fromkeys(ask_of(demand) for demand in demands)
    for gang in gangs:
        asks.update(dict.fromkeys(ask_of(demand) for option in gang.options for demand in option))
    return list(asks)


def _values(problem: PackProblem, gang: Gang) -> list[str]:
    """Every value of the gang's locality label that a node or a type has."""
    if not gang.locality_label:
        return []
    labels = [node.labels for node in problem.nodes] + [offer.node_type.labels for offer in problem.offers]
    return sorted({have[gang.locality_label] for have in labels if gang.locality_label in have})
