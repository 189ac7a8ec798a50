"""Run the steps of a pass: constraints against totals, then gangs, then demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from muster.base.resources import Resources
from muster.cluster.model import Gang
from muster.cluster.planner.demand_classes import gang_size
from muster.cluster.planner.request import DemandKind, PackProblem, PackSolution, Placement, Unplaced
from muster.cluster.planner.utilization.fill import Fill, Filler
from muster.cluster.planner.utilization.grouping import (
    NodeGrouping,
    NodeRun,
    Request,
    State,
    demand_requests,
    gang_order,
    gang_requests,
    runs_of,
)
from muster.cluster.planner.utilization.select import (
    FillCache,
    NodePurchase,
    Pick,
    choose_nodes,
    choose_offers,
)

if TYPE_CHECKING:
    from muster.cluster.planner.utilization.gang_table import GangTable

# Choosing one by one takes time for every different node or type, and a little for every other one; from
# these on, for each gang and for all of them together, all are scored at once, which loads numpy.
TABLE_FROM, TABLE_FROM_IN_ALL = 150, 5_000
_EQUAL_NODE = 1 / 32
_FEW_BUNDLES = 64  # of a larger gang, nodes are chosen one by one


class PlacementLog:
    """Collects placements and leftovers of a whole pass."""

    def __init__(self) -> None:
        self.placements: list[Placement] = []
        self.unplaced: list[Unplaced] = []


class AttemptLog:
    """Records one committed attempt: the items of a run are served in order."""

    def __init__(self, runs: Sequence[NodeRun]) -> None:
        # Per run, the item served next is the last: [item, requests not served yet, bundles per request].
        self._queues = [[[*share] for share in reversed(run.shares)] for run in runs]
        self._amounts: dict[tuple[int, int, str], int] = {}

    def add(self, takes: Sequence[tuple[int, int]], node: int, node_type: str, times: int = 1) -> None:
        """Record the same requests on this many nodes."""
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

    def write_to(self, log: PlacementLog, kind: DemandKind, is_gang: bool) -> None:
        """Write what was served to the log, and that the rest found no place."""
        log.placements += [
            Placement(kind, is_gang, *where, amount) for where, amount in self._amounts.items()
        ]
        log.unplaced += [
            Unplaced(kind, is_gang, item, count * bundles)
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
    """Has nodes, new machines and rooms after the attempts committed so far."""

    def __init__(
        self, grouping: NodeGrouping, log: PlacementLog, kind: DemandKind, before: Fleet | None = None
    ) -> None:
        problem = grouping.problem
        self._grouping = grouping
        self._log = log
        self._book = kind
        self._offers = grouping.offer_states()
        self._caches: dict[tuple[object, ...], FillCache] = {}  # asked by gangs so far
        self._refused: set[tuple[object, ...]] = set()  # by the fleet as it stands
        self._table: GangTable | None = None  # in use: has the order of the nodes
        self._may_table: bool | None = None  # None: not enough nodes yet
        self._looks_from = 0  # so many nodes
        self.grown: set[int] = before.grown if before else set()
        self.launched: list[int] = before.launched if before else []  # the offer of each new machine
        self.rooms: list[int] = before.rooms if before else [offer.room for offer in problem.offers]
        self.room: int | None = before.room if before else problem.room
        self.states = [grouping.node_state(n, kind, n in self.grown) for n in range(len(problem.nodes))]
        self.states += [self._offers[offer] for offer in self.launched]
        self.order: list[int] = before.order if before else list(range(len(self.states)))
        if before:
            # Labels belong to the node, for either kind of demand.
            for number, (state, other) in enumerate(zip(self.states, before.states, strict=True)):
                if state.labels != other.labels:
                    self.states[number] = self._grouping.states.state(
                        state.frame, other.labels, state.free, state.used, state.lead
                    )

    def place(self, runs: Sequence[NodeRun]) -> None:
        """Place what fits."""
        self._leave_table()
        if runs:
            self._commit(self._attempt(FillCache(Filler(runs, self._grouping.columns))), runs, False)

    def place_gang(self, runs: Sequence[NodeRun]) -> bool:
        """Place all of it or nothing; returns whether it was placed."""
        if not runs:
            return True
        # Gangs with the same signature have equal requests; labels that no node has are interchangeable.
        known = self._grouping.known_labels
        signature = tuple(
            (run.shape, run.selectors, run.avoid and run.avoid[0] in known and run.avoid, run.amount)
            for run in runs
        )
        if signature in self._refused:
            return False
        cache = self._caches.get(signature)
        if cache is None:
            cache = self._caches[signature] = FillCache(Filler(runs, self._grouping.columns))
        cache.filler.renew()
        table = self._gang_table(runs)
        outcome = self._attempt(cache) if table is None else self._attempt_in(table, cache.filler)
        if cache.filler.alive:
            self._refused.add(signature)
            if table is not None:
                table.undo()
            return False
        self._commit(outcome, runs, True)
        if table is not None:
            table.commit(cache.filler, self.states)
        self._refused.clear()
        return True

    def _gang_table(self, runs: Sequence[NodeRun]) -> GangTable | None:
        """Return the table, if it is worth having one and it can place this gang."""
        suits = len({run.avoid for run in runs}) == 1
        few = sum(run.amount for run in runs) <= max(_FEW_BUNDLES, len(self.states) // 16)
        if not suits or not few or not self._wants_table():
            self._leave_table()
            return None
        if self._table is None:
            from muster.cluster.planner.utilization.gang_rows import GangColumns
            from muster.cluster.planner.utilization.gang_table import GangTable

            columns = GangColumns(self._grouping, [*dict.fromkeys(self.states), *self._offers])
            self._table = GangTable(columns, self._offers)
            self._table.load(self.states, self.order)
            if not self._table.is_usable:
                self._table, self._may_table = None, False
        return self._table

    def _wants_table(self) -> bool:
        """Return whether there are candidates enough; looks again when there are twice as many nodes."""
        if self._grouping.largest or self._grouping.columns.entangled or self._may_table is False:
            return False
        if not self._may_table and len(self.states) >= self._looks_from:
            self._may_table = self._has_many_candidates() or None
            self._looks_from = 2 * len(self.states) + 1
        return bool(self._may_table)

    def _has_many_candidates(self) -> bool:
        kinds = len(set(self.states)) + len(self._offers)
        weight = kinds + len(self.states) * _EQUAL_NODE
        return weight >= TABLE_FROM and weight * len(self._grouping.problem.gangs) >= TABLE_FROM_IN_ALL

    def _leave_table(self) -> None:
        """Take the order back; placing by any other way changes it."""
        if self._table is not None:
            self.order = self._table.order()
            self._table = None

    def _attempt_in(self, table: GangTable, filler: Filler) -> AttemptOutcome:
        picks = table.choose_nodes(filler, self.states)
        purchases = table.choose_offers(filler, self.rooms, self.room) if filler.alive else []
        return AttemptOutcome(self.order, picks, [], purchases)

    def _attempt(self, cache: FillCache) -> AttemptOutcome:
        filler = cache.filler
        groups, aside = self._candidates(cache)
        chosen = choose_nodes(cache, groups)
        order, picks = self._reordered(chosen, aside)
        growths = self._grow(cache, order, picks) if filler.alive and self._grouping.largest else []
        purchases = choose_offers(cache, self._offers, self.rooms, self.room) if filler.alive else []
        return AttemptOutcome(order, picks, growths, purchases)

    def _candidates(self, cache: FillCache) -> tuple[dict[State, list[int]], list[int]]:
        """Group equal nodes with their places in the list; and return the places of those set aside."""
        groups: dict[State, list[int]] = {}
        states = self.states
        for place, number in enumerate(self.order):
            state = states[number]
            if state in groups:
                groups[state].append(place)
            else:
                groups[state] = [place]
        useless = [state for state in groups if state.frame.set_aside and not cache.fits(state)]
        return groups, sorted(place for state in useless for place in groups.pop(state))

    def _reordered(
        self, chosen: list[Pick], aside: list[int]
    ) -> tuple[list[int], list[tuple[list[int], State, Fill]]]:
        """Return the list after the picks, and the picks with node numbers."""
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
        self, cache: FillCache, order: list[int], picks: list[tuple[list[int], State, Fill]]
    ) -> list[tuple[list[int], State, Fill]]:
        """Place leftovers on nodes that can be enlarged; they keep their places in the list."""
        grouping = self._grouping
        standing = {number: self._filled(state, fill) for numbers, state, fill in picks for number in numbers}
        groups: dict[State, list[int]] = {}
        for place, number in enumerate(order):
            if number in grouping.largest and number not in self.grown:
                state = standing.get(number, self.states[number])
                groups.setdefault(grouping.grown_state(number, self._book, state), []).append(place)
        chosen = choose_nodes(cache, groups)
        return [([order[place] for place in pick.places], pick.state, pick.fill) for pick in chosen]

    def _commit(self, outcome: AttemptOutcome, runs: Sequence[NodeRun], is_gang: bool) -> None:
        placed = AttemptLog(runs)
        for numbers, state, fill in (*outcome.picks, *outcome.growths):
            after = self._after(state, fill)
            for number in numbers:
                self.states[number] = after
                placed.add(fill.takes, *self._where(number))
        self.grown.update(number for numbers, _, _ in outcome.growths for number in numbers)
        self.order = outcome.order
        for purchase in outcome.purchases:
            self._buy(purchase)
            name = self._grouping.problem.offers[purchase.offer].node_type.name
            placed.add(purchase.fill.takes, -1, name, purchase.machines)
        placed.write_to(self._log, self._book, is_gang)

    def _where(self, number: int) -> tuple[int, str]:
        nodes = self._grouping.problem.nodes
        if number < len(nodes):
            return number, nodes[number].node_type
        offer = self.launched[number - len(nodes)]
        return -1, self._grouping.problem.offers[offer].node_type.name

    def _filled(self, state: State, fill: Fill) -> State:
        """Return the state while the attempt continues."""
        return self._grouping.states.state(state.frame, fill.labels, fill.free, fill.used, fill.lead)

    def _after(self, state: State, fill: Fill) -> State:
        """Return the state after the attempt: a label that only its own requests use is dropped."""
        if fill.labels is not state.labels:
            lasting = self._grouping.columns.lasting_labels
            labels = tuple(pair for pair in fill.labels if pair in state.labels or pair[0] in lasting)
            fill = fill._replace(labels=labels)
        return self._filled(state, fill)

    def _buy(self, purchase: NodePurchase) -> None:
        offer, fill, count = purchase
        first = len(self.states)
        self.states += [self._after(self._offers[offer], fill)] * count
        self.order.extend(range(first, first + count))
        self.launched += [offer] * count
        self.rooms[offer] -= count
        if self.room is not None:
            self.room -= count


def solve_utilization(problem: PackProblem) -> PackSolution:
    """Return where the demand goes by Ray's scoring rule, and which machines to buy for the rest."""
    grouping, log = NodeGrouping(problem), PlacementLog()
    before = None
    if problem.constraints:
        before = Fleet(grouping, log, DemandKind.CONSTRAINT)
        before.place(runs_of(demand_requests(problem.constraints)))
    fleet = Fleet(grouping, log, DemandKind.DEMAND, before)
    labels = {gang.locality_label for gang in problem.gangs if gang.locality_label}
    places = {label: _locality_values(problem, label) for label in labels}
    for item in gang_order(problem.gangs):
        _place_gang(fleet, log, problem.gangs[item], item, places)
    fleet.place(runs_of(demand_requests(problem.demands)))
    return _solution(grouping, log, fleet)


Places = dict[str, tuple[str, ...]]  # the values of each locality label


def _place_gang(fleet: Fleet, log: PlacementLog, gang: Gang, item: int, places: Places) -> None:
    for requests in _ways(item, gang, places):
        if fleet.place_gang(runs_of(requests)):
            return
    if gang_size(gang):
        log.unplaced.append(Unplaced(DemandKind.DEMAND, True, item, gang_size(gang)))


def _ways(item: int, gang: Gang, places: Places) -> Iterator[Sequence[Request]]:
    """Yield alternatives in order; with a locality, each of them in one place after the other."""
    values: tuple[str | None, ...] = places[gang.locality_label] if gang.locality_label else (None,)
    for option in gang.options:
        for value in values:
            yield gang_requests(item, gang, option, value)


def _locality_values(problem: PackProblem, label: str) -> tuple[str, ...]:
    """Return places where there are nodes, then places where machines can be launched."""
    bearers = [node.labels for node in problem.nodes]
    bearers += [offer.node_type.labels for offer in problem.offers]
    return tuple(dict.fromkeys(labels[label] for labels in bearers if label in labels))


def _solution(grouping: NodeGrouping, log: PlacementLog, fleet: Fleet) -> PackSolution:
    problem = grouping.problem
    names = [offer.node_type.name for offer in problem.offers]
    launch = dict(Counter(names[offer] for offer in fleet.launched))
    # A machine on its way is not resized: it was planned at its largest size from the start.
    resize = {n: Resources(grouping.largest[n]) for n in sorted(fleet.grown) if problem.nodes[n].runs}
    return PackSolution(
        launch=launch, placements=tuple(log.placements), unplaced=tuple(log.unplaced), resize=resize
    )
