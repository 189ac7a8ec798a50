"""Choose the nodes that must go: outdated ones, those above a maximum, and idle ones that nothing needs.

`pack` applies limits before any demand is placed: such nodes leave the planning at once, hold no demand and
count against no limit. It looks for idle nodes, and for machines on their way that nothing waits for, after
the demand. The head is never chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.cluster.model import NodeKind, NodeType, StopCause
from muster.cluster.planner.offers import with_choices_left
from muster.cluster.planner.request import PackNode, PackRequest, Removal, TypeOffer
from muster.cluster.states import InstanceState

Groups = dict[str, list[PackNode]]  # nodes by type; types in order of first appearance


class LimitedCluster(Struct, frozen=True, kw_only=True):
    """The cluster once limits and minimums are applied."""

    nodes: tuple[PackNode, ...]  # in list order, machines launched for minimums included
    removals: tuple[Removal, ...]
    launched: Mapping[str, int]  # for minimums, by type
    offers: tuple[TypeOffer, ...]  # with the room there was before anything was launched
    room: int | None


def resolve_limits(request: PackRequest) -> LimitedCluster:
    """Remove outdated nodes, caps each type and the cluster, and buys what minimums lack."""
    types = {offer.node_type.name: offer.node_type for offer in request.offers}
    removals: list[Removal] = []
    groups, staying = _current(request, types, removals)
    _cap_types(groups, types, removals)
    survivors = _cap_cluster(groups, request.max_nodes, removals)
    live = {name: len(group) for name, group in groups.items()}
    if survivors is not None:
        live = Counter(node.node_type for node in survivors)
    offers, room = _rooms(request, live, staying)
    offers = with_choices_left(
        offers, chain.from_iterable(groups.values()) if survivors is None else survivors, request
    )
    launched = _minimums(offers, live, room)
    return LimitedCluster(
        # Where the cluster had to shrink there is no room to buy, so the survivors are the whole list.
        nodes=tuple(_listed(groups, launched, types) if survivors is None else survivors),
        removals=tuple(removals),
        launched=launched,
        offers=offers,
        room=room,
    )


def victim_order(node: PackNode) -> tuple[bool, float, float]:
    """Return the sort key, first to go first: not running, then longest idle, then least used."""
    return node.runs, -node.idle_s, mean_utilization(node)


def mean_utilization(node: PackNode) -> float:
    """Return the mean used share of the node's resources; one not reported as free counts as used."""
    total, free = node.total, node.available
    shares = [(have - free.units(name)) / have for name, have in total.items() if have > 0]
    return sum(shares) / len(shares) if shares else 0.0


def removal(node: PackNode, cause: StopCause, details: str, idle_s: float = 0.0) -> Removal:
    return Removal(InstanceId(node.key), node.node_type, cause, details, idle_s)


def _current(
    request: PackRequest, types: Mapping[str, NodeType], removals: list[Removal]
) -> tuple[Groups, int]:
    """Return the nodes by type, without those whose type is gone or (when checked) changed since launch.

    A node of a type that is gone stays until it is idle, but takes no demand; the number of these is second.
    """
    groups: Groups = {}
    staying = 0
    is_checked = request.check_launch_hash
    for node in request.nodes:
        known = types.get(node.node_type)
        is_replaced = known is None or (is_checked and _is_outdated(node, known))
        if is_replaced and node.kind is not NodeKind.HEAD:
            staying += known is None and node.runs
            if known is not None or not node.runs or node.idle_s > 0:
                removals.append(_replaced(node, known, is_checked))
            continue
        group = groups.get(node.node_type)
        if group is None:
            groups[node.node_type] = [node]
        else:
            group.append(node)
    return groups, staying


def _is_outdated(node: PackNode, known: NodeType) -> bool:
    """A node without a recorded hash is not outdated: a missing record is not a reason to stop a node."""
    return bool(known.launch_hash and node.launch_hash) and known.launch_hash != node.launch_hash


def _replaced(node: PackNode, known: NodeType | None, is_checked: bool) -> Removal:
    if known is not None:
        return removal(node, StopCause.OUTDATED, f"node type {known.name} was changed since it was launched")
    if node.runs:  # an idle drain: the runtime refuses it where work has begun meanwhile
        details = f"idle, and node type {node.node_type} is not in the config"
        return removal(node, StopCause.IDLE, details, node.idle_s)
    # A type that left the config is a type of which none is wanted.
    cause = StopCause.OUTDATED if is_checked else StopCause.MAX_NODES_PER_TYPE
    return removal(node, cause, f"node type {node.node_type} is not in the config")


def _cap_types(groups: Groups, types: Mapping[str, NodeType], removals: list[Removal]) -> None:
    for name in groups:
        known = types.get(name)
        if known is not None and known.existing is not None:
            groups[name] = _without_wishes(groups[name], known, removals)
        group = groups[name]
        if known is None or len(group) <= known.max_nodes:  # an unknown type here is the head's: it stays
            continue
        details = f"{len(group)} nodes of type {name}, at most {known.max_nodes} allowed"
        victims, survivors = _choose(group, len(group) - known.max_nodes)
        removals.extend(removal(node, StopCause.MAX_NODES_PER_TYPE, details) for node in victims)
        groups[name] = survivors


def _without_wishes(group: list[PackNode], known: NodeType, removals: list[Removal]) -> list[PackNode]:
    """Remove what nothing was asked for yet, where more are wished for than machines of the type exist."""
    queued = [node for node in group if node.state is InstanceState.QUEUED]
    excess = queued[: max(0, len(group) - known.most_nodes)]
    details = f"{len(group)} nodes of type {known.name}, and {known.existing} machines of it exist"
    removals.extend(removal(node, StopCause.MAX_NODES_PER_TYPE, details) for node in excess)
    gone = {node.key for node in excess}
    return [node for node in group if node.key not in gone]


def _cap_cluster(groups: Groups, max_nodes: int | None, removals: list[Removal]) -> list[PackNode] | None:
    """Return the survivors in their new order; None when no node had to go."""
    live = sum(map(len, groups.values()))
    if max_nodes is None or live <= max_nodes:
        return None
    details = f"{live} nodes in the cluster, at most {max_nodes} allowed"
    victims, survivors = _choose(chain.from_iterable(groups.values()), live - max_nodes)
    removals.extend(removal(node, StopCause.MAX_NODES, details) for node in victims)
    return survivors


def _choose(nodes: Iterable[PackNode], excess: int) -> tuple[list[PackNode], list[PackNode]]:
    """Return the victims, and the survivors in victim order with the head last."""
    everyone = list(nodes)
    heads = [node for node in everyone if node.kind is NodeKind.HEAD]
    ranked = sorted((node for node in everyone if node.kind is not NodeKind.HEAD), key=victim_order)
    return ranked[:excess], ranked[excess:] + heads


def _rooms(
    request: PackRequest, live: Mapping[str, int], staying: int
) -> tuple[tuple[TypeOffer, ...], int | None]:
    """Return how many more of each type, and in all. Nodes on their way out may come back, so they count.

    So do the `staying` ones, of types that are gone: they run until they are idle, and cost as much.
    """
    leaving = request.leaving
    offers = tuple(
        _with_room(offer, live.get(offer.node_type.name, 0) + leaving.get(offer.node_type.name, 0))
        for offer in request.offers
    )
    rooms = [] if request.most_new is None else [request.most_new]
    if request.max_nodes is not None:
        rooms.append(max(0, request.max_nodes - sum(live.values()) - sum(leaving.values()) - staying))
    return offers, min(rooms, default=None)


def _with_room(offer: TypeOffer, taken: int) -> TypeOffer:
    room = 0 if offer.blocked_kind is not None else max(0, offer.node_type.most_nodes - taken)
    return offer if offer.room == room else replace(offer, room=room)


def _minimums(offers: Iterable[TypeOffer], live: Mapping[str, int], room: int | None) -> dict[str, int]:
    """Return machines to buy for minimums; limits bound them, and types in config order come first."""
    launched: dict[str, int] = {}
    for offer in offers:
        known = offer.node_type
        missing = min(known.min_nodes - live.get(known.name, 0), offer.room)
        if room is not None:
            missing = min(missing, room - sum(launched.values()))
        if missing > 0:
            launched[known.name] = missing
    return launched


def _listed(groups: Groups, launched: Mapping[str, int], types: Mapping[str, NodeType]) -> Iterator[PackNode]:
    """Group by type, new machines in front; exact ties of the engines go to the first in this order."""
    for name, count in launched.items():
        yield from (_new_node(types[name]) for _ in range(count))
        yield from groups.get(name, ())
    for name, group in groups.items():
        if name not in launched:
            yield from group


def _new_node(of: NodeType) -> PackNode:
    return PackNode(
        key="",
        node_type=of.name,
        total=of.resources,
        available=of.resources,
        state=InstanceState.QUEUED,
        labels=of.labels,
        launch_hash=of.launch_hash,
    )


_S = InstanceState
# Least advanced first: these have cost the least. A launch under way cannot be undone, but is not repeated.
COMING = (_S.QUEUED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.REQUESTED)
_WISHED_S = 30.0  # nothing was launched yet for a QUEUED one: once unneeded for so long it is withdrawn

Since = Mapping[str, tuple[float, ...]]


def remove_idle(
    request: PackRequest, nodes: Sequence[PackNode], needed: frozenset[str], launch: Mapping[str, int]
) -> tuple[tuple[Removal, ...], Since]:
    """Remove idle nodes in victim order, as many as minimums allow; `launch` counts towards the minimums.

    The second value is `pending_idle` of the next pass.
    """
    running, head = InstanceState.RAY_RUNNING, NodeKind.HEAD
    unbusy = (n for n in nodes if n.idle_s > 0 or n.state is not running)  # few, in most ticks
    unneeded = [n for n in unbusy if n.key and n.key not in needed and n.kind is not head]
    since, waiting = _pending(request, unneeded)
    late = (n for n in waiting if n.idle_s > _limit_s(n, request))
    expired = sorted([*_expired_running(request, unneeded), *late], key=victim_order)
    chosen = _spare(request, nodes, expired, launch) if expired else []
    # Removes one time per machine that goes; types without any are dropped.
    gone = Counter(node.node_type for node in chosen if not node.runs)
    left = {name: times[gone[name] :] for name, times in since.items()}
    removals = []
    for node in chosen:
        what = f"{'idle' if node.runs else 'on its way and unneeded'} for {node.idle_s:g} s"
        why = ", and no experiment will need it" if node.runs and request.most_idle_s is not None else ""
        removals.append(removal(node, StopCause.IDLE, what + why, node.idle_s))
    return tuple(removals), {name: times for name, times in left.items() if times}


def idle_limit_s(known: NodeType, request: PackRequest) -> float | None:
    """Return how long a node of this type may be idle; None: no limit."""
    limit_s = request.idle_timeout_s if known.idle_timeout_s is None else known.idle_timeout_s
    if limit_s is None or request.most_idle_s is None:
        return limit_s
    return min(limit_s, request.most_idle_s)


def _expired_running(request: PackRequest, unneeded: Iterable[PackNode]) -> list[PackNode]:
    limits_s = {offer.node_type.name: idle_limit_s(offer.node_type, request) for offer in request.offers}
    expired = []
    for node in unneeded:
        limit_s = limits_s.get(node.node_type)
        if node.runs and limit_s is not None and node.idle_s > limit_s:
            expired.append(node)
    return expired


def _pending(
    request: PackRequest, unneeded: Iterable[PackNode]
) -> tuple[dict[str, tuple[float, ...]], list[PackNode]]:
    """Return per type since when k+1 machines on their way were unneeded, and those machines.

    The oldest times go to the least advanced machines.
    """
    groups: Groups = {}
    for node in unneeded:
        if not node.runs:
            groups.setdefault(node.node_type, []).append(node)
    since: dict[str, tuple[float, ...]] = {}
    waiting: list[PackNode] = []
    for name, group in groups.items():
        known = request.pending_idle.get(name, ())[: len(group)]
        since[name] = known + (request.now,) * (len(group) - len(known))
        group.sort(key=lambda node: COMING.index(node.state))
        waiting += [
            replace(node, idle_s=request.now - at) for node, at in zip(group, since[name], strict=True)
        ]
    return since, waiting


def _limit_s(node: PackNode, request: PackRequest) -> float:
    """Return for how long a machine on its way may be unneeded."""
    limit_s = request.pending_idle_s
    if limit_s is None or limit_s < 0 or node.state is _S.REQUESTED:
        limit_s = math.inf
    return min(limit_s, _WISHED_S) if node.state is _S.QUEUED else limit_s


def _spare(
    request: PackRequest, nodes: Sequence[PackNode], expired: Sequence[PackNode], launch: Mapping[str, int]
) -> list[PackNode]:
    """Return the first of each type that the minimum does not need."""
    spare = {
        offer.node_type.name: launch.get(offer.node_type.name, 0) - offer.node_type.min_nodes
        for offer in request.offers
    }
    for node in nodes:
        if node.key and node.node_type in spare:  # machines without a key are in `launch`
            spare[node.node_type] += 1
    chosen = []
    for node in expired:
        if spare[node.node_type] > 0:
            chosen.append(node)
            spare[node.node_type] -= 1
    return chosen
