"""Implement the utilization rule as plainly as possible: one request, one node, one pick at a time.

The reference that the fast engine is compared with. Slow on purpose; shares no code with the engine.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

from muster.base.resources import IMPLICIT_PREFIX, SCALE, Resources
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, Strategy
from muster.cluster.planner.request import (
    DemandKind,
    PackNode,
    PackProblem,
    PackSolution,
    Placement,
    Unplaced,
)


@dataclass
class Request:
    """One single request: `bundles` is more than one only for the merged bundles of a STRICT_PACK gang."""

    shape: dict[str, int]
    selectors: tuple
    avoid: tuple[str, str] | None
    item: int
    is_gang: bool = False
    bundles: int = 1
    affinity: bool = False

    def sort_key(self):
        return (
            int(self.avoid is not None) + int(self.affinity),
            len(self.selectors[0]) if self.selectors else 0,
            len(self.shape),
            sum(self.shape.values()),
            sorted(self.shape.items()),
        )


@dataclass
class Node:
    """A simulated node with its capacity for both kinds of demand."""

    index: int  # into PackProblem.nodes; -1 for a new machine
    node_type: str
    total: dict[str, int]
    free: dict[DemandKind, dict[str, int]]
    labels: dict[str, str]
    runs: bool
    tail: tuple
    grow_to: dict[str, int] | None = None
    grown: bool = False
    placed: dict[DemandKind, list[Request]] = field(default_factory=lambda: {kind: [] for kind in DemandKind})

    def __deepcopy__(self, memo):
        return Node(
            index=self.index,
            node_type=self.node_type,
            total=dict(self.total),
            free={kind: dict(free) for kind, free in self.free.items()},
            labels=dict(self.labels),
            runs=self.runs,
            tail=self.tail,
            grow_to=self.grow_to,
            grown=self.grown,
            placed={kind: list(placed) for kind, placed in self.placed.items()},
        )


def condition_holds(match: LabelMatch, labels: dict[str, str]) -> bool:
    if match.operator is LabelOperator.IN:
        return match.key in labels and labels[match.key] in match.values
    return match.key not in labels or labels[match.key] not in match.values


def matching_selector(request: Request, labels: dict[str, str]) -> int | None:
    for index, selector in enumerate(request.selectors):
        if all(condition_holds(match, labels) for match in selector):
            return index
    return None


def have(free: dict[str, int], name: str) -> int:
    return free.get(name, SCALE if name.startswith(IMPLICIT_PREFIX) else 0)


def fits(shape: dict[str, int], free: dict[str, int]) -> bool:
    return all(quantity <= have(free, name) for name, quantity in shape.items())


def place(node: Node, request: Request, kind: DemandKind) -> bool:
    if request.selectors and matching_selector(request, node.labels) is None:
        return False
    if request.avoid is not None and node.labels.get(request.avoid[0]) == request.avoid[1]:
        return False
    free = node.free[kind]
    if not fits(request.shape, free):
        return False
    for name, quantity in request.shape.items():
        if quantity:
            free[name] = have(free, name) - quantity
    node.placed[kind].append(request)
    if request.avoid is not None:
        node.labels[request.avoid[0]] = request.avoid[1]
    return True


def score(node: Node, kind: DemandKind, conserve_gpus: bool) -> tuple:
    placed, free = node.placed[kind], node.free[kind]
    label_score = 0
    for request in placed:
        index = matching_selector(request, node.labels)
        if index is not None:
            label_score = len(request.selectors) - index
            break
    wants_gpu = any("GPU" in request.shape for request in placed)
    gpu_ok = not (conserve_gpus and node.total.get("GPU", 0) > 0 and not wants_gpu)
    names = {name for request in placed for name, quantity in request.shape.items() if quantity > 0}
    values = []
    for name in sorted(node.total):
        if node.total[name] > 0 and name in free:
            v, a = node.total[name] / SCALE, free[name] / SCALE
            values.append(v * ((v - a) / v) ** 3)
    mean = 0.0
    for value in values:
        mean += value
    return (
        label_score,
        gpu_ok,
        len(names & node.total.keys()),
        min(values, default=0.0),
        mean / len(values) if values else 0.0,
        *node.tail,
    )


class Pass:
    """One planning pass over one problem."""

    def __init__(self, problem: PackProblem) -> None:
        self.problem = problem
        self.tails = {
            o.node_type.name: (o.recoverable, o.node_type.priority, o.availability) for o in problem.offers
        }
        self.types = {o.node_type.name: o.node_type for o in problem.offers}
        self.nodes = [self.existing(index, node) for index, node in enumerate(problem.nodes)]
        self.room = {o.node_type.name: o.room for o in problem.offers}
        self.room_left = problem.room
        self.unplaced: Counter = Counter()
        self.attempts = 0  # of placing one request on one node, as SD-30 counts them

    def existing(self, index: int, node: PackNode) -> Node:
        total, free = dict(node.total), dict(node.available)
        status = node.resize
        if status is not None and status.in_progress:
            grow(total, free, dict(status.desired))
        made = Node(
            index=index,
            node_type=node.node_type,
            total=total,
            free={DemandKind.DEMAND: free, DemandKind.CONSTRAINT: dict(total)},
            labels=dict(node.labels),
            runs=node.runs,
            tail=self.tails.get(node.node_type, (1.0, 0, 1.0)),
        )
        made.grow_to = self.grow_to(node, made)
        return made

    def grow_to(self, node: PackNode, made: Node) -> dict[str, int] | None:
        node_type = self.types.get(node.node_type)
        if node_type is None or node_type.resize is None:
            return None
        status, maximum = node.resize, dict(node_type.resize.maximum)
        if status is None:
            if node.runs:
                return None  # the provider said nothing about it
            current = dict(made.total)  # on its way: promised at its maximum when it was launched
        else:
            if status.failed or status.in_progress:
                return None
            current = dict(status.current)
            maximum.update(status.suggested_maximum or {})
        if all(current.get(name, 0) >= quantity for name, quantity in maximum.items()):
            return None
        return {name: max(quantity, current.get(name, 0)) for name, quantity in maximum.items()}

    def template(self, name: str) -> Node:
        node_type = self.types[name]
        total = dict(node_type.resources)
        if node_type.resize is not None:
            for resource, quantity in node_type.resize.maximum.items():
                total[resource] = max(quantity, total.get(resource, 0))
        return Node(
            index=-1,
            node_type=name,
            total=total,
            free={kind: dict(total) for kind in DemandKind},
            labels=dict(node_type.labels),
            runs=False,
            tail=self.tails[name],
        )

    def best(self, candidates: list[Node], requests: list[Request], kind: DemandKind):
        """Position of the best candidate, the node as it would be, and what would be left."""
        found = None
        for position, candidate in enumerate(candidates):
            node, left = deepcopy(candidate), []
            for request in requests:
                if not place(node, request, kind):
                    left.append(request)
            if len(left) < len(requests):
                value = score(node, kind, self.problem.conserve_gpus)
                if found is None or value > found[0]:
                    found = (value, position, node, left)
        return found[1:] if found else None

    def try_schedule(self, requests: list[Request], kind: DemandKind):
        """The nodes as they would be, the rooms, and the requests left over; nothing is committed."""
        requests = sorted(requests, key=Request.sort_key, reverse=True)
        nodes, room, room_left = deepcopy(self.nodes), dict(self.room), self.room_left
        if not requests:
            return nodes, room, room_left, []
        nodes, requests = self.fill_existing(nodes, requests, kind)
        requests = self.fill_grown(nodes, requests, kind)
        templates = [self.template(o.node_type.name) for o in self.problem.offers if o.room > 0]
        templates = [t for t in templates if room[t.node_type] > 0]
        while requests and templates and (room_left is None or room_left > 0):
            choice = self.best(templates, requests, kind)
            if choice is None:
                break
            position, node, requests = choice
            del templates[position]
            nodes.append(node)
            room[node.node_type] -= 1
            room_left = None if room_left is None else room_left - 1
            if room[node.node_type] > 0:
                templates.append(self.template(node.node_type))
        return nodes, room, room_left, requests

    def fill_existing(self, nodes: list[Node], requests: list[Request], kind: DemandKind):
        aside, candidates, picked = [], [], []
        for node in nodes:
            useful = any(fits(request.shape, node.free[kind]) for request in requests)
            (candidates if useful or not node.runs else aside).append(node)
        while requests and candidates:
            choice = self.best(candidates, requests, kind)
            if choice is None:
                break
            position, node, requests = choice
            del candidates[position]
            picked.append(node)
        return picked + candidates + aside, requests

    def fill_grown(self, nodes: list[Node], requests: list[Request], kind: DemandKind):
        """Leftovers on nodes that can grow; every node keeps its place in the list."""
        places, candidates = [], []
        for place_, node in enumerate(nodes):
            if node.grow_to is not None and not node.grown:
                larger = deepcopy(node)
                larger.grown = True
                total = dict(node.total)
                grow(larger.total, larger.free[DemandKind.DEMAND], node.grow_to)
                grow(total, larger.free[DemandKind.CONSTRAINT], node.grow_to)
                places.append(place_)
                candidates.append(larger)
        while requests and candidates:
            choice = self.best(candidates, requests, kind)
            if choice is None:
                break
            position, node, requests = choice
            nodes[places[position]] = node
            del places[position], candidates[position]
        return requests

    def commit(self, nodes: list[Node], room: dict[str, int], room_left: int | None) -> None:
        self.nodes, self.room, self.room_left = nodes, room, room_left

    def place_all(self, demands: tuple[Demand, ...], kind: DemandKind) -> None:
        requests = [
            Request(dict(demand.shape), demand.selectors, demand.avoid, item)
            for item, demand in enumerate(demands)
            for _ in range(demand.count)
        ]
        nodes, room, room_left, left = self.try_schedule(requests, kind)
        self.commit(nodes, room, room_left)
        for request in left:
            self.unplaced[Unplaced(kind, False, request.item, 0)] += 1

    def place_gang(self, item: int, gang: Gang) -> None:
        for requests in self.ways(item, gang):
            nodes, room, room_left, left = self.try_schedule(requests, DemandKind.DEMAND)
            if not left:
                self.commit(nodes, room, room_left)
                return
        bundles = sum(demand.count for demand in gang.options[0]) if gang.options else 0
        self.unplaced[Unplaced(DemandKind.DEMAND, True, item, 0)] += bundles

    def ways(self, item: int, gang: Gang):
        for option in gang.options:
            if not gang.locality_label:
                yield bundle_requests(item, gang, option)
                continue
            for value in self.locality_values(gang.locality_label):
                match = LabelMatch(gang.locality_label, LabelOperator.IN, (value,))
                yield bundle_requests(item, gang, option, match)

    def locality_values(self, label: str) -> list[str]:
        bearers = [n.labels for n in self.problem.nodes] + [o.node_type.labels for o in self.problem.offers]
        return list(dict.fromkeys(labels[label] for labels in bearers if label in labels))

    def solution(self) -> PackSolution:
        launch: Counter = Counter()
        placed: Counter = Counter()
        for node in self.nodes:
            if node.index < 0:
                launch[node.node_type] += 1
            for kind in DemandKind:
                for r in node.placed[kind]:
                    placed[(kind, r.is_gang, r.item, node.index, node.node_type)] += r.bundles
        resize = {
            node.index: Resources(node.grow_to)
            for node in self.nodes
            if node.grown and self.problem.nodes[node.index].runs
        }
        return PackSolution(
            launch=dict(launch),
            placements=tuple(Placement(*key, amount) for key, amount in placed.items()),
            unplaced=tuple(key._replace(amount=amount) for key, amount in self.unplaced.items() if amount),
            resize=resize,
        )


def grow(total: dict[str, int], free: dict[str, int], size: dict[str, int]) -> None:
    """Give a node another size; what is in use stays in use."""
    for name, quantity in size.items():
        free[name] = max(0, free.get(name, 0) + quantity - total.get(name, 0))
        total[name] = quantity


def bundle_requests(item: int, gang: Gang, option, match: LabelMatch | None = None) -> list[Request]:
    requests = []
    for demand in option:
        selectors = demand.selectors
        if match is not None:
            selectors = tuple((*selector, match) for selector in selectors or ((),))
        avoid = (gang.label, "") if gang.strategy is Strategy.STRICT_SPREAD else demand.avoid
        for _ in range(demand.count):
            requests.append(Request(dict(demand.shape), selectors, avoid, item, is_gang=True))
    if gang.strategy is not Strategy.STRICT_PACK:
        return requests
    merged: dict = {}
    for request in requests:
        key = (request.selectors, request.avoid)
        if key not in merged:
            merged[key] = request
            request.affinity = True
        else:
            whole = merged[key]
            whole.bundles += 1
            for name, quantity in request.shape.items():
                whole.shape[name] = whole.shape.get(name, 0) + quantity
    return list(merged.values())


def gang_order(gang: Gang):
    bundles = gang.options[0] if gang.options else ()
    count = sum(demand.count for demand in bundles)
    strict = gang.strategy in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD)
    constrained = count if strict else sum(demand.count for demand in bundles if demand.avoid)
    return constrained, count


def solve_naively(problem: PackProblem) -> PackSolution:
    run = Pass(problem)
    run.place_all(problem.constraints, DemandKind.CONSTRAINT)
    order = sorted(range(len(problem.gangs)), key=lambda i: gang_order(problem.gangs[i]), reverse=True)
    for item in order:
        run.place_gang(item, problem.gangs[item])
    run.place_all(problem.demands, DemandKind.DEMAND)
    return run.solution()
