"""The steps of a pass: constraints on their own book, then gangs, then demands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from muster.base.resources import Resources
from muster.cluster.binpack.request import Book, PackProblem, PackSolution, Placement, Unplaced
from muster.cluster.binpack.utilization.fill import Fill, Filler
from muster.cluster.binpack.utilization.grouping import (
    NodeRun,
    Request,
    State,
    Survey,
    bundle_count,
    demand_requests,
    gang_order,
    gang_requests,
    runs_of,
)
from muster.cluster.binpack.utilization.select import (
    NodePurchase,
    Pick,
    Question,
    choose_nodes,
    choose_offers,
)
from muster.cluster.model import Gang


class PlacementLog:
    """Placements and leftovers of a whole pass."""

    def __init__(self) -> None:
        self.placements: list[Placement] = []
        self.unplaced: list[Unplaced] = []


class Posting:
    """One committed attempt: the items of a run are served first come, first served."""

    def __init__(self, runs: Sequence[NodeRun]) -> None:
        # Per run, the item served next is the last: [item, requests not served yet, bundles per request].
        self._queues = [[[*share] for share in reversed(run.shares)] for run in runs]
        self._amounts: dict[tuple[int, int, str], int] = {}

    def note(self, takes: Sequence[tuple[int, int]], node: int, node_type: str, times: int = 1) -> None:
        """The same requests on so many nodes."""
        amounts = self._amounts
        for run, amount in takes:
            left = amount * times
            queue = self._queues[run]
            while left:
                share = queue[-1]
                served = min(left, share[1])
                where = (share[0], node, node_type)
                amounts[where] = amounts.get(where, 0) + served * share[2]
                left -= served
                share[1] -= served
                if not share[1]:
                    queue.pop()

    def close(self, ledger: PlacementLog, book: Book, is_gang: bool) -> None:
        """Into the ledger: what was served, and that the rest found no place."""
        ledger.placements += [
            Placement(book, is_gang, *where, amount) for where, amount in self._amounts.items()
        ]
        ledger.unplaced += [
            Unplaced(book, is_gang, item, count * bundles)
            for queue in self._queues
            for item, count, bundles in reversed(queue)
        ]


class AttemptOutcome(NamedTuple):
    """What one attempt would do."""

    order: list[int]  # node numbers: picked, not picked, set aside
    picks: list[tuple[list[int], State, Fill]]  # node numbers, state before, what they take
    growths: list[tuple[list[int], State, Fill]]  # likewise, the state being that at the largest size
    purchases: list[NodePurchase]


class Fleet:
    """Nodes, new machines and rooms as they stand after the attempts committed so far."""

    def __init__(self, survey: Survey, ledger: PlacementLog, book: Book, before: Fleet | None = None) -> None:
        problem = survey.problem
        self._survey = survey
        self._ledger = ledger
        self._book = book
        self._offers = survey.offer_states()
        self._questions: dict[tuple[object, ...], Question] = {}  # asked by gangs so far
        self._refused: set[tuple[object, ...]] = set()  # by the fleet as it stands
        self.grown: set[int] = before.grown if before else set()
        self.bought: list[int] = before.bought if before else []  # the offer of each new machine
        self.rooms: list[int] = before.rooms if before else [offer.room for offer in problem.offers]
        self.room: int | None = before.room if before else problem.room
        self.states = [survey.node_state(n, book, n in self.grown) for n in range(len(problem.nodes))]
        self.states += [self._offers[offer] for offer in self.bought]
        self.order: list[int] = before.order if before else list(range(len(self.states)))
        if before:
            self._keep_labels(before)

    def _keep_labels(self, before: Fleet) -> None:
        """Labels belong to the node, whichever book they were added on."""
        for number, (state, other) in enumerate(zip(self.states, before.states, strict=True)):
            if state.labels != other.labels:
                self.states[number] = self._survey.states.state(
                    state.frame, other.labels, state.free, state.used, state.lead
                )

    def place(self, runs: Sequence[NodeRun]) -> None:
        """Place what fits."""
        if runs:
            self._commit(self._attempt(Question(Filler(runs, self._survey.columns))), runs, False)

    def place_gang(self, runs: Sequence[NodeRun]) -> bool:
        """Place all of it or nothing; whether it was placed."""
        if not runs:
            return True
        signature = self._signature(runs)
        if signature in self._refused:
            return False
        question = self._questions.get(signature)
        if question is None:
            question = self._questions[signature] = Question(Filler(runs, self._survey.columns))
        question.filler.renew()
        outcome = self._attempt(question)
        if question.filler.alive:
            self._refused.add(signature)
            return False
        self._commit(outcome, runs, True)
        self._refused.clear()
        return True

    def _signature(self, runs: Sequence[NodeRun]) -> tuple[object, ...]:
        """Gangs with the same signature ask the same; a label that no node has is as good as another."""
        known = self._survey.known_labels
        return tuple(
            (run.shape, run.selectors, run.avoid and run.avoid[0] in known and run.avoid, run.amount)
            for run in runs
        )

    def _attempt(self, question: Question) -> AttemptOutcome:
        filler = question.filler
        groups, aside = self._candidates(question)
        chosen = choose_nodes(question, groups)
        order, picks = self._reordered(chosen, aside)
        growths = self._grow(question, order, picks) if filler.alive and self._survey.largest else []
        purchases = choose_offers(question, self._offers, self.rooms, self.room) if filler.alive else []
        return AttemptOutcome(order, picks, growths, purchases)

    def _candidates(self, question: Question) -> tuple[dict[State, list[int]], list[int]]:
        """Equal nodes together, with their places in the list; and the places of those set aside."""
        groups: dict[State, list[int]] = {}
        states = self.states
        for place, number in enumerate(self.order):
            state = states[number]
            if state in groups:
                groups[state].append(place)
            else:
                groups[state] = [place]
        useless = [state for state in groups if state.frame.set_aside and not question.fits(state)]
        return groups, sorted(place for state in useless for place in groups.pop(state))

    def _reordered(
        self, chosen: list[Pick], aside: list[int]
    ) -> tuple[list[int], list[tuple[list[int], State, Fill]]]:
        """The list after the picks, and the picks with node numbers."""
        order = self.order
        picks = [([order[place] for place in pick.places], pick.state, pick.fill) for pick in chosen]
        moved = {place for pick in chosen for place in pick.places}
        moved.update(aside)
        front = [number for numbers, _, _ in picks for number in numbers]
        if not moved:
            return list(order), picks
        middle = [number for place, number in enumerate(order) if place not in moved]
        return front + middle + [order[place] for place in aside], picks

    def _grow(
        self, question: Question, order: list[int], picks: list[tuple[list[int], State, Fill]]
    ) -> list[tuple[list[int], State, Fill]]:
        """Leftovers on nodes that can be enlarged; they keep their places in the list."""
        survey = self._survey
        standing = {number: self._filled(state, fill) for numbers, state, fill in picks for number in numbers}
        groups: dict[State, list[int]] = {}
        for place, number in enumerate(order):
            if number in survey.largest and number not in self.grown:
                state = standing.get(number, self.states[number])
                groups.setdefault(survey.grown_state(number, self._book, state), []).append(place)
        chosen = choose_nodes(question, groups)
        return [([order[place] for place in pick.places], pick.state, pick.fill) for pick in chosen]

    def _commit(self, outcome: AttemptOutcome, runs: Sequence[NodeRun], is_gang: bool) -> None:
        posting = Posting(runs)
        for numbers, state, fill in (*outcome.picks, *outcome.growths):
            after = self._after(state, fill)
            for number in numbers:
                self.states[number] = after
                posting.note(fill.takes, *self._where(number))
        self.grown.update(number for numbers, _, _ in outcome.growths for number in numbers)
        self.order = outcome.order
        for purchase in outcome.purchases:
            self._buy(purchase)
            name = self._survey.problem.offers[purchase.offer].node_type.name
            posting.note(purchase.fill.takes, -1, name, purchase.machines)
        posting.close(self._ledger, self._book, is_gang)

    def _where(self, number: int) -> tuple[int, str]:
        nodes = self._survey.problem.nodes
        if number < len(nodes):
            return number, nodes[number].node_type
        offer = self.bought[number - len(nodes)]
        return -1, self._survey.problem.offers[offer].node_type.name

    def _filled(self, state: State, fill: Fill) -> State:
        """The state while the attempt goes on."""
        return self._survey.states.state(state.frame, fill.labels, fill.free, fill.used, fill.lead)

    def _after(self, state: State, fill: Fill) -> State:
        """The state once the attempt is over: a label that only its own requests looked at is dropped."""
        if fill.labels is not state.labels:
            lasting = self._survey.columns.lasting_labels
            labels = tuple(pair for pair in fill.labels if pair in state.labels or pair[0] in lasting)
            fill = fill._replace(labels=labels)
        return self._filled(state, fill)

    def _buy(self, purchase: NodePurchase) -> None:
        offer, fill, count = purchase
        first = len(self.states)
        self.states += [self._after(self._offers[offer], fill)] * count
        self.order.extend(range(first, first + count))
        self.bought += [offer] * count
        self.rooms[offer] -= count
        if self.room is not None:
            self.room -= count


def solve_utilization(problem: PackProblem) -> PackSolution:
    """Where the demand goes by Ray's scoring rule, and which machines to buy for the rest."""
    survey, ledger = Survey(problem), PlacementLog()
    before = None
    if problem.constraints:
        before = Fleet(survey, ledger, Book.CONSTRAINT)
        before.place(runs_of(demand_requests(problem.constraints)))
    fleet = Fleet(survey, ledger, Book.DEMAND, before)
    for item in gang_order(problem.gangs):
        _place_gang(fleet, ledger, problem, item)
    fleet.place(runs_of(demand_requests(problem.demands)))
    return _solution(survey, ledger, fleet)


def _place_gang(fleet: Fleet, ledger: PlacementLog, problem: PackProblem, item: int) -> None:
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


def _solution(survey: Survey, ledger: PlacementLog, fleet: Fleet) -> PackSolution:
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
