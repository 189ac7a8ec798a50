"""The steps of a pass: constraints on their own book, then gangs, then demands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.base.resources import Resources
from muster.cluster.binpack.request import Book, PackProblem, PackSolution, Unplaced
from muster.cluster.binpack.utilization.grouping import (
    Request,
    Survey,
    bundle_count,
    demand_requests,
    gang_order,
    gang_requests,
    runs_of,
)
from muster.cluster.binpack.utilization.ledger import Ledger
from muster.cluster.binpack.utilization.nodes import Fleet
from muster.cluster.model import Gang


def solve_utilization(problem: PackProblem) -> PackSolution:
    """Where the demand goes by Ray's scoring rule, and which machines to buy for the rest."""
    survey, ledger = Survey(problem), Ledger()
    before = None
    if problem.constraints:
        before = Fleet(survey, ledger, Book.CONSTRAINT)
        before.place(runs_of(demand_requests(problem.constraints)))
    fleet = Fleet(survey, ledger, Book.DEMAND, before)
    for item in gang_order(problem.gangs):
        _place_gang(fleet, ledger, problem, item)
    fleet.place(runs_of(demand_requests(problem.demands)))
    return _solution(survey, ledger, fleet)


def _place_gang(fleet: Fleet, ledger: Ledger, problem: PackProblem, item: int) -> None:
    gang = problem.gangs[item]
    for requests in _ways(problem, item, gang):
        if fleet.place_gang(runs_of(requests)):
            return
    if bundle_count(gang):
        ledger.unplaced.append(Unplaced(Book.DEMAND, True, item, bundle_count(gang)))


def _ways(problem: PackProblem, item: int, gang: Gang) -> Iterator[Sequence[Request]]:
    """Alternatives in order; with a locality, each of them in one place after the other."""
    values: tuple[str | None, ...] = (None,)
    if gang.locality_label:
        values = _locality_values(problem, gang.locality_label)
    for option in gang.options:
        for value in values:
            yield gang_requests(item, gang, option, value)


def _locality_values(problem: PackProblem, label: str) -> tuple[str, ...]:
    """Places where there are nodes, then places where machines can be bought."""
    bearers = [node.labels for node in problem.nodes]
    bearers += [offer.node_type.labels for offer in problem.offers]
    return tuple(dict.fromkeys(labels[label] for labels in bearers if label in labels))


def _solution(survey: Survey, ledger: Ledger, fleet: Fleet) -> PackSolution:
    problem = survey.problem
    names = [offer.node_type.name for offer in problem.offers]
    launch: dict[str, int] = {}
    for offer in fleet.bought:
        launch[names[offer]] = launch.get(names[offer], 0) + 1
    # A machine on its way is not resized: it was planned at its largest size from the start.
    resize = {n: Resources(survey.largest[n]) for n in sorted(fleet.grown) if problem.nodes[n].runs}
    return PackSolution(
        launch=launch, placements=tuple(ledger.placements), unplaced=tuple(ledger.unplaced), resize=resize
    )
