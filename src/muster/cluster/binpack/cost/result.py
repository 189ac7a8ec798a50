"""From entries to the planner's answer: placements, launch map, and the load of every single machine.

Called by `engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.base.resources import ItemKey
from muster.cluster.binpack.cost.allocate import Served
from muster.cluster.binpack.cost.gangs import bundle_count
from muster.cluster.binpack.cost.inventory import growth_limit
from muster.cluster.binpack.request import Book, PackProblem, PackSolution, Placement, Unplaced


class Outcome(NamedTuple):
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


def solution_of(problem: PackProblem, outcome: Outcome) -> PackSolution:
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


def detail_of(problem: PackProblem, outcome: Outcome) -> Detail:
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


def _placements(problem: PackProblem, outcome: Outcome) -> list[Placement]:
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


def _unplaced(problem: PackProblem, outcome: Outcome) -> list[Unplaced]:
    missing = []
    for book, served in outcome.books.items():
        missing += [Unplaced(book, False, item, amount) for item, amount in sorted(served.short.items())]
        sizes = [(gang, bundle_count(problem.gangs[gang])) for gang in served.failed]
        missing += [Unplaced(book, True, gang, size) for gang, size in sizes if size]
    return missing
