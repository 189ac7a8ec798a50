"""Verify any PackSolution against its PackProblem; shared by the tests of both engines.

`broken_rules` reads what every engine returns. `broken_rules_in_detail` reads every single machine of an
engine that returns them (cost: `solve_detailed`). Both return sentences; an empty list means the plan holds.
Written apart from the engines: it uses Resources arithmetic only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, NodeType, Strategy
from muster.cluster.planner.demand_classes import first_match
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem, PackSolution

SMALL = 9  # pieces up to which packing on machines is searched exactly


def broken_rules(problem: PackProblem, solution: PackSolution) -> list[str]:
    nowhere = _nowhere(problem, solution)
    if nowhere:
        return nowhere
    return [
        *_counts(problem, solution),
        *_limits(problem, solution),
        *_places(problem, solution),
        *_gangs(problem, solution),
        *_apart(problem, solution),
        *_resizes(problem, solution),
        *_nodes_hold(problem, solution),
        *_machines_hold(problem, solution),
    ]


def broken_rules_in_detail(problem: PackProblem, detail) -> list[str]:
    """Also: each node and machine holds its own load, and gangs are made of exactly their bundles."""
    found = broken_rules(problem, detail.solution)
    launched = Counter(name for name, _ in detail.machines)
    if dict(launched) != dict(detail.solution.launch):
        found.append(f"machines {dict(launched)} are not the launch map {dict(detail.solution.launch)}")
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    bins = [
        (
            node_capacity(problem, detail.solution, i, DemandKind.DEMAND),
            node_capacity(problem, detail.solution, i, DemandKind.CONSTRAINT),
        )
        for i in range(len(problem.nodes))
    ]
    bins += [(type_capacity(types[name]),) * 2 for name, _ in detail.machines]
    loads = [*detail.nodes, *(load for _, load in detail.machines)]
    labels = [node.labels for node in problem.nodes] + [types[name].labels for name, _ in detail.machines]
    for number, (capacity, load) in enumerate(zip(bins, loads, strict=True)):
        for kind, have in zip((DemandKind.DEMAND, DemandKind.CONSTRAINT), capacity, strict=True):
            need = Resources()
            for piece in load:
                if piece.kind is kind:
                    need = need.plus(Resources(dict(piece.shape)).times(piece.amount))
            if have.lacks(need):
                found.append(f"bin {number} lacks {have.lacks(need)} for {kind}")
        found += _bin_keeps_apart(problem, number, load, labels[number])
    if any(not load for _, load in detail.machines):
        found.append("a machine is launched for nothing")
    found += _details_add_up(problem, detail)
    found += _gang_pieces(problem, loads, labels)
    return found


def _details_add_up(problem: PackProblem, detail) -> list[str]:
    listed: Counter = Counter()
    for p in detail.solution.placements:
        listed[p.kind, p.is_gang, p.item, p.node, p.node_type] += p.amount
    seen: Counter = Counter()
    bins = [(i, node.node_type) for i, node in enumerate(problem.nodes)] + [
        (-1, n) for n, _ in detail.machines
    ]
    for (node, name), load in zip(bins, [*detail.nodes, *(load for _, load in detail.machines)], strict=True):
        for piece in load:
            seen[piece.kind, piece.is_gang, piece.item, node, name] += piece.amount * piece.bundles
    return [] if listed == seen else ["the placements are not the sum of the machines' loads"]


def _bin_keeps_apart(
    problem: PackProblem, number: int, load: Sequence, labels: Mapping[str, str]
) -> list[str]:
    found = []
    marks: Counter = Counter()
    for piece in load:
        if piece.is_gang:
            gang = problem.gangs[piece.item]
            if gang.strategy is Strategy.STRICT_SPREAD:
                marks[gang.label, None] += piece.amount
        else:
            demand = (problem.demands if piece.kind is DemandKind.DEMAND else problem.constraints)[piece.item]
            if demand.avoid is not None:
                marks[(*demand.avoid, piece.kind)] += piece.amount
    found += [f"bin {number} holds {count} of {mark}" for mark, count in marks.items() if count > 1]
    return found


def _gang_pieces(
    problem: PackProblem, loads: Sequence[Sequence], labels: Sequence[Mapping[str, str]]
) -> list[str]:
    """The pieces of each gang are the bundles of one option, each on a node that its selectors admit."""
    pieces: dict[int, list[tuple[tuple, int]]] = {}
    for number, load in enumerate(loads):
        for piece in load:
            if piece.is_gang:
                pieces.setdefault(piece.item, []).extend([(piece.shape, number)] * piece.amount)
    found = []
    for index, seats in pieces.items():
        gang = problem.gangs[index]
        if not any(_is_option(_pieces_of(gang, option), seats, labels) for option in gang.options):
            found.append(f"gang {index} is not one of its options: {seats}")
    return found


def _pieces_of(gang: Gang, option: Iterable[Demand]) -> list[Demand]:
    single = [Demand(shape=d.shape, selectors=d.selectors) for d in option for _ in range(d.count)]
    if gang.strategy is not Strategy.STRICT_PACK:
        return single
    merged: dict[tuple, Resources] = {}
    for demand in single:
        key = _in_effect(demand.selectors)
        merged[key] = merged.get(key, Resources()).plus(demand.shape.positive())
    return [Demand(shape=shape, selectors=selectors) for selectors, shape in merged.items()]


def _in_effect(selectors: tuple) -> tuple:
    """Without what follows a selector that holds everywhere; nothing when that comes first."""
    for index, selector in enumerate(selectors):
        if not selector:
            return selectors[: index + 1] if index else ()
    return selectors


def _is_option(
    bundles: Sequence[Demand], seats: Sequence[tuple[tuple, int]], labels: Sequence[Mapping[str, str]]
) -> bool:
    """Find a perfect matching of bundles and pieces (augmenting paths)."""
    if len(bundles) != len(seats):
        return False
    fits = [
        [
            j
            for j, (shape, where) in enumerate(seats)
            if b.shape.positive().key == shape and admits(b, labels[where])
        ]
        for b in bundles
    ]
    holder: dict[int, int] = {}

    def place(bundle: int, tried: set[int]) -> bool:
        for seat in fits[bundle]:
            if seat not in tried:
                tried.add(seat)
                if seat not in holder or place(holder[seat], tried):
                    holder[seat] = bundle
                    return True
        return False

    return all(place(bundle, set()) for bundle in range(len(bundles)))


def admits(demand: Demand, labels: Mapping[str, str]) -> bool:
    return not demand.selectors or first_match(demand.selectors, labels) is not None


def type_capacity(node_type: NodeType) -> Resources:
    most = dict(node_type.resources)
    if node_type.resize is not None:
        for name, units in node_type.resize.maximum.items():
            most[name] = max(units, most.get(name, 0))
    return Resources(most)


def node_capacity(problem: PackProblem, solution: PackSolution, index: int, kind: DemandKind) -> Resources:
    """Return what a kind of demand may use of a node, a resize under way or decided counted as done."""
    node = problem.nodes[index]
    target = solution.resize.get(index)
    if node.resize is not None and node.resize.in_progress:
        target = node.resize.desired
    elif target is None and node.resize is not None and not node.runs:
        target = resize_limit(problem, node)  # still coming: may be asked for at full size
    have = dict(node.available if kind is DemandKind.DEMAND else node.total)
    for name, units in (target or {}).items():
        have[name] = max(0, have.get(name, 0) + units - node.total.units(name))
    return Resources(have)


def resize_limit(problem: PackProblem, node: PackNode) -> Resources | None:
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    limits = types[node.node_type].resize if node.node_type in types else None
    if node.resize is None or limits is None or node.resize.failed or node.resize.in_progress:
        return None
    limit = node.resize.suggested_maximum or limits.maximum
    return Resources({name: max(units, node.total.units(name)) for name, units in limit.items()})


def _demands_of(problem: PackProblem, kind: DemandKind) -> Sequence[Demand]:
    return problem.demands if kind is DemandKind.DEMAND else problem.constraints


def _counts(problem: PackProblem, solution: PackSolution) -> list[str]:
    placed: Counter = Counter()
    missing: Counter = Counter()
    for p in solution.placements:
        placed[p.kind, p.is_gang, p.item] += p.amount
    for u in solution.unplaced:
        missing[u.kind, u.is_gang, u.item] += u.amount
    found = [f"empty placement {p}" for p in (*solution.placements, *solution.unplaced) if p.amount < 1]
    known = []
    for kind in DemandKind:
        for i, demand in enumerate(_demands_of(problem, kind)):
            known.append((kind, False, i))
            there = placed[kind, False, i] + missing[kind, False, i]
            if there != demand.count:
                found.append(f"{kind} demand {i}: {there} of {demand.count} requests are accounted for")
    for i, gang in enumerate(problem.gangs):
        key = (DemandKind.DEMAND, True, i)
        known.append(key)
        sizes = [sum(d.count for d in option) for option in gang.options] or [0]
        if not (placed[key] in sizes and missing[key] == 0) and not (
            placed[key] == 0 and missing[key] == sizes[0]
        ):
            found.append(f"gang {i}: {placed[key]} placed and {missing[key]} not, of {sizes}")
    return found + [
        f"unknown item {key}" for key in sorted(set(placed) | set(missing), key=str) if key not in known
    ]


def _limits(problem: PackProblem, solution: PackSolution) -> list[str]:
    room = {offer.node_type.name: offer.room for offer in problem.offers}
    found = [
        f"{n} x {name}: room for {room.get(name)}"
        for name, n in solution.launch.items()
        if n < 1 or n > room.get(name, 0)
    ]
    total = sum(solution.launch.values())
    if problem.room is not None and total > max(problem.room, 0):
        found.append(f"{total} machines: room for {problem.room}")
    return found


def _nowhere(problem: PackProblem, solution: PackSolution) -> list[str]:
    """Placements on nodes that do not exist and on machines that are not launched."""
    found = []
    for p in solution.placements:
        if not -1 <= p.node < len(problem.nodes):
            found.append(f"no such node: {p}")
        elif p.node == -1 and p.node_type not in solution.launch:
            found.append(f"not launched: {p}")
    return found


def _places(problem: PackProblem, solution: PackSolution) -> list[str]:
    """Placements name the node's type, and its labels admit them."""
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    found = []
    for p in solution.placements:
        if p.node >= 0 and problem.nodes[p.node].node_type != p.node_type:
            found.append(f"wrong type: {p}")
        labels = types[p.node_type].labels if p.node == -1 else problem.nodes[p.node].labels
        if p.is_gang:
            bundles = [d for option in problem.gangs[p.item].options for d in option]
            if not any(admits(d, labels) for d in bundles):
                found.append(f"labels: {p}")
        elif not admits(_demands_of(problem, p.kind)[p.item], labels):
            found.append(f"labels: {p}")
    return found


def _gangs(problem: PackProblem, solution: PackSolution) -> list[str]:
    """Strict spreading, strict packing and locality, as far as placements by type can tell."""
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    seats: dict[int, list] = {}
    for p in solution.placements:
        if p.is_gang:
            seats.setdefault(p.item, []).append(p)
    found = []
    for index, placed in seats.items():
        gang = problem.gangs[index]
        where = [problem.nodes[p.node].labels if p.node >= 0 else types[p.node_type].labels for p in placed]
        if gang.locality_label and len({labels.get(gang.locality_label, "") for labels in where} | {""}) != 2:
            found.append(f"gang {index} does not share one {gang.locality_label}")
        if gang.strategy is Strategy.STRICT_SPREAD:
            for p, labels in zip(placed, where, strict=True):
                most = solution.launch[p.node_type] if p.node == -1 else 1
                if p.amount > most or gang.label in labels:
                    found.append(f"gang {index} is not spread: {p}")
        if gang.strategy is Strategy.STRICT_PACK and len(placed) > _most_parts(gang):
            found.append(f"gang {index} is not packed: {placed}")
    return found


def _most_parts(gang: Gang) -> int:
    """Into how many pieces a strictly packed gang may fall: one per distinct selector list."""
    return max(len({_in_effect(demand.selectors) for demand in option}) for option in gang.options)


def _apart(problem: PackProblem, solution: PackSolution) -> list[str]:
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    counts: Counter = Counter()
    found = []
    for p in solution.placements:
        demand = None if p.is_gang else _demands_of(problem, p.kind)[p.item]
        if demand is None or demand.avoid is None:
            continue
        labels = types[p.node_type].labels if p.node == -1 else problem.nodes[p.node].labels
        if labels.get(demand.avoid[0]) == demand.avoid[1]:
            found.append(f"avoided label: {p}")
        counts[p.kind, demand.avoid, p.node, p.node_type] += p.amount
    for (_, avoid, node, name), amount in counts.items():
        if amount > (solution.launch[name] if node == -1 else 1):
            found.append(f"{amount} that avoid {avoid} on {name if node == -1 else node}")
    return found


def _resizes(problem: PackProblem, solution: PackSolution) -> list[str]:
    found = []
    for index, size in solution.resize.items():
        node = problem.nodes[index]
        limit = resize_limit(problem, node)
        if limit is None or not node.runs:
            found.append(f"node {index} may not be resized now")
        elif any(units > limit.units(n) or units < node.total.units(n) for n, units in size.items()):
            found.append(f"node {index} resized to {size}, limit {limit}")
    return found


def _needs(problem: PackProblem, solution: PackSolution) -> dict[tuple, list[tuple[Resources, int]]]:
    """Per (book, node, type) the pieces on it; of a gang with unlike bundles only its total is known, so the
    smallest amount of each resource is taken, which never says too much."""
    needs: dict[tuple, list[tuple[Resources, int]]] = {}
    for p in solution.placements:
        here = needs.setdefault((p.kind, p.node, p.node_type), [])
        if not p.is_gang:
            here.append((_demands_of(problem, p.kind)[p.item].shape.positive(), p.amount))
            continue
        bundles = [d.shape.positive() for option in problem.gangs[p.item].options for d in option]
        shared = {name: min(b.units(name) for b in bundles) for b in bundles for name in b}
        here.append((Resources({name: units for name, units in shared.items() if units}), p.amount))
    return needs


def _nodes_hold(problem: PackProblem, solution: PackSolution) -> list[str]:
    found = []
    for (kind, node, _), pieces in _needs(problem, solution).items():
        if node >= 0:
            total = Resources()
            for shape, amount in pieces:
                total = total.plus(shape.times(amount))
            lacks = node_capacity(problem, solution, node, kind).lacks(total)
            if lacks:
                found.append(f"node {node} lacks {lacks} for {kind}")
    return found


def _machines_hold(problem: PackProblem, solution: PackSolution) -> list[str]:
    """New machines of a type hold in sum what was put on the type; few pieces are packed exactly."""
    types = {offer.node_type.name: offer.node_type for offer in problem.offers}
    found = []
    for (kind, node, name), pieces in _needs(problem, solution).items():
        if node >= 0:
            continue
        capacity, machines = type_capacity(types[name]), solution.launch.get(name, 0)
        total = Resources()
        for shape, amount in pieces:
            total = total.plus(shape.times(amount))
        if _all_of(capacity, total, machines).lacks(total):
            found.append(
                f"{machines} x {name} lack {_all_of(capacity, total, machines).lacks(total)} for {kind}"
            )
        single = (
            [shape for shape, amount in pieces for _ in range(amount)]
            if sum(a for _, a in pieces) <= SMALL
            else []
        )
        if single and not _packs(sorted(single, key=lambda s: s.key, reverse=True), [capacity] * machines):
            found.append(f"{machines} x {name} cannot hold {single}")
    return found


def _all_of(capacity: Resources, need: Resources, machines: int) -> Resources:
    """What several machines have together, implicit resources written out."""
    missing = capacity.lacks(need)
    whole = {name: capacity.get(name, need[name] - missing.get(name, 0)) for name in need}
    return Resources({name: units * machines for name, units in whole.items()})


def _packs(pieces: Sequence[Resources], bins: list[Resources]) -> bool:
    """Whether the pieces fit, by trying every bin (equal bins once)."""
    if not pieces:
        return True
    tried = set()
    for i, free in enumerate(bins):
        if free not in tried and free.holds(pieces[0]):
            tried.add(free)
            if _packs(pieces[1:], [*bins[:i], free.minus(pieces[0]), *bins[i + 1 :]]):
                return True
    return False
