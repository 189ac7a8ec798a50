"""Finds nodes that are no longer needed: idle ones, and machines on their way that nothing waits for.

Called by `pack` after the demand was placed; a node that anything was planned onto is never idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.cluster.binpack.limits import removal, victim_order
from muster.cluster.binpack.request import PackNode, PackRequest, Removal
from muster.cluster.model import NodeKind, NodeType, StopCause
from muster.cluster.states import InstanceState

# Least advanced first: these have cost the least. REQUESTED is absent: a launch under way cannot be undone.
UNDOABLE = (InstanceState.QUEUED, InstanceState.ALLOCATED, InstanceState.RAY_INSTALLING)

Since = Mapping[str, tuple[float, ...]]


class IdleAnswer(Struct, frozen=True, kw_only=True):
    """An IdleAnswer has the nodes to remove and what the next pass needs to know."""

    removals: tuple[Removal, ...]
    pending_idle: Since  # what the next pass must be given


def remove_idle(
    request: PackRequest, nodes: Sequence[PackNode], needed: frozenset[str], launch: Mapping[str, int]
) -> IdleAnswer:
    """Removes idle nodes in victim order, as many as minimums allow; `launch` counts towards the minimums."""
    since, waiting = _pending(request, nodes, needed)
    expired = sorted(
        [*_expired_running(request, nodes, needed), *(n for n in waiting if _waited_too_long(n, request))],
        key=victim_order,
    )
    chosen = _spare(request, nodes, expired, launch) if expired else []
    return IdleAnswer(
        removals=tuple(_removal(node) for node in chosen),
        pending_idle=_without_oldest(since, chosen),
    )


def idle_limit_s(known: NodeType, request: PackRequest) -> float | None:
    """Returns how long a node of this type may be idle; None: no limit."""
    limit_s = request.idle_timeout_s if known.idle_timeout_s is None else known.idle_timeout_s
    if limit_s is None or request.most_idle_s is None:
        return limit_s
    return min(limit_s, request.most_idle_s)


def _expired_running(
    request: PackRequest, nodes: Sequence[PackNode], needed: frozenset[str]
) -> list[PackNode]:
    limits_s = {offer.node_type.name: idle_limit_s(offer.node_type, request) for offer in request.offers}
    running, head = InstanceState.RAY_RUNNING, NodeKind.HEAD
    expired = []
    for node in nodes:
        if node.idle_s > 0 and node.state is running:  # a busy node never goes, whatever the limit
            limit_s = limits_s.get(node.node_type)
            is_over = limit_s is not None and node.idle_s > limit_s
            if is_over and node.kind is not head and node.key not in needed:
                expired.append(node)
    return expired


def _pending(
    request: PackRequest, nodes: Sequence[PackNode], needed: frozenset[str]
) -> tuple[dict[str, tuple[float, ...]], list[PackNode]]:
    """Returns per type since when k+1 machines on their way were unneeded, and those machines.

    The oldest times go to the least advanced machines.
    """
    if request.pending_idle_s is None or request.pending_idle_s < 0:
        return {}, []
    unneeded: dict[str, list[PackNode]] = {}
    for node in nodes:
        if node.state in UNDOABLE and node.key and node.key not in needed and node.kind is not NodeKind.HEAD:
            unneeded.setdefault(node.node_type, []).append(node)
    since: dict[str, tuple[float, ...]] = {}
    waiting: list[PackNode] = []
    for name, group in unneeded.items():
        known = request.pending_idle.get(name, ())[: len(group)]
        since[name] = known + (request.now,) * (len(group) - len(known))
        group.sort(key=lambda node: UNDOABLE.index(node.state))
        waiting += [
            replace(node, idle_s=request.now - at) for node, at in zip(group, since[name], strict=True)
        ]
    return since, waiting


def _waited_too_long(node: PackNode, request: PackRequest) -> bool:
    return request.pending_idle_s is not None and node.idle_s > request.pending_idle_s


def _spare(
    request: PackRequest, nodes: Sequence[PackNode], expired: Sequence[PackNode], launch: Mapping[str, int]
) -> list[PackNode]:
    """Returns the first of each type that the minimum does not need."""
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


def _removal(node: PackNode) -> Removal:
    what = "idle" if node.runs else "on its way and unneeded"
    return removal(node, StopCause.IDLE, f"{what} for {node.idle_s:g} s", node.idle_s)


def _without_oldest(since: Mapping[str, tuple[float, ...]], chosen: Sequence[PackNode]) -> Since:
    """Removes one time per machine that goes; types without any are dropped."""
    gone = Counter(node.node_type for node in chosen if not node.runs)
    left = {name: times[gone[name] :] for name, times in since.items()}
    return {name: times for name, times in left.items() if times}
