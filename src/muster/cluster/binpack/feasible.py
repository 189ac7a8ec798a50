"""Decides whether a node type could ever hold a request, and which type comes nearest if none can.

Called by `explain`; reads shapes and labels only, never limits or what is free. The engines ask it which
resources no type has (`node:<ip>`), and which nodes have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from muster.base.resources import SCALE, Resources, implicit_units
from muster.cluster.binpack.request import PackNode, TypeOffer
from muster.cluster.model import Demand, LabelMatch, LabelOperator, NodeType, Selector
from muster.cluster.plan import Reason


def selector_holds(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Returns whether every condition holds; the empty selector holds everywhere."""
    return all(_match_holds(match, labels) for match in selector)


def first_match(selectors: Sequence[Selector], labels: Mapping[str, str]) -> int | None:
    """Returns the index of the first selector that holds; None when none does, or there is none."""
    for index, selector in enumerate(selectors):
        if selector_holds(selector, labels):
            return index
    return None


def _match_holds(match: LabelMatch, labels: Mapping[str, str]) -> bool:
    """A missing label is in no set: IN fails, NOT_IN passes; an unknown operator fails."""
    value = labels.get(match.key)
    if match.operator is LabelOperator.IN:
        return value is not None and value in match.values
    return match.operator is LabelOperator.NOT_IN and (value is None or value not in match.values)


class Nearest(NamedTuple):
    """A Nearest is the type that is closest to holding a request that no type can hold."""

    name: str  # empty: there is no type at all
    lacks: Mapping[str, float]
    detail: str


def capacity(node_type: NodeType) -> Resources:
    """Returns all that a machine of this type can have, grown in place as far as is expected of it."""
    if node_type.resize is None:
        return node_type.resources
    grown = dict(node_type.resources)
    for name, units in node_type.resize.planned.items():
        grown[name] = max(units, grown.get(name, 0))
    return Resources(grown)


def why_not(demand: Demand, node_type: NodeType) -> Reason | None:
    """Returns why no machine of this type could ever hold one of these requests; None when one could."""
    if not capacity(node_type).holds(demand.shape):
        return Reason.TYPE_LACKS_RESOURCES
    return None if labels_suit(demand, node_type.labels) else Reason.TYPE_LABELS_DIFFER


def labels_suit(demand: Demand, labels: Mapping[str, str]) -> bool:
    if demand.avoid is not None and labels.get(demand.avoid[0]) == demand.avoid[1]:
        return False
    return not demand.selectors or first_match(demand.selectors, labels) is not None


def nearest(demand: Demand, offers: Sequence[TypeOffer]) -> Nearest:
    """Returns the type that is short of the smallest shares of what is asked; then the first listed."""
    wanted = f"{{{demand.shape}}}"
    if not offers:
        return Nearest("", {}, f"no node type can hold {wanted}: the config has no node types")
    ranked = [_shortfall(demand, offer.node_type) for offer in offers]
    best = min(range(len(offers)), key=lambda index: (ranked[index], index))
    chosen = offers[best].node_type
    lacks = capacity(chosen).lacks(demand.shape)
    if not lacks:
        has = ", ".join(f"{key}={value}" for key, value in sorted(chosen.labels.items())) or "none"
        asks = " or ".join(_selector_text(selector) for selector in demand.selectors) or f"not {demand.avoid}"
        detail = f"no node type that can hold {wanted} has labels {asks}: {chosen.name} has {has}"
        return Nearest(chosen.name, {}, detail)
    short = Resources(lacks)
    detail = f"no node type can hold {wanted}: nearest is {chosen.name}, which lacks {short}"
    return Nearest(chosen.name, {name: units / SCALE for name, units in lacks.items()}, detail)


def _shortfall(demand: Demand, node_type: NodeType) -> tuple[float, bool]:
    lacks = capacity(node_type).lacks(demand.shape)
    share = sum(units / demand.shape[name] for name, units in lacks.items())
    return share, not labels_suit(demand, node_type.labels)


def _selector_text(selector: Selector) -> str:
    parts = (
        f"{match.key} {'in' if match.operator is LabelOperator.IN else 'not in'} {', '.join(match.values)}"
        for match in selector
    )
    return " and ".join(parts)


def names_of_no_type(names: Iterable[str], offers: Iterable[TypeOffer]) -> list[str]:
    """Returns the resources that no new machine could have: only nodes that exist, if any, offer them."""
    offered = {name for offer in offers for name in capacity(offer.node_type)}
    return [name for name in names if name not in offered and not implicit_units(name)]


def nodes_by_name(names: Iterable[str], nodes: Sequence[PackNode]) -> dict[str, list[int]]:
    """Returns per resource the nodes that have it; without resources of nodes that are or may be resized."""
    homes: dict[str, list[int]] = {name: [] for name in names}
    for number, node in enumerate(nodes):
        for name in (*node.total, *node.available):
            if name in homes and (not homes[name] or homes[name][-1] != number):
                homes[name].append(number)
    for node in nodes:
        if node.resize is not None:
            target = node.resize.suggested_maximum or ()
            for name in (*node.total, *node.available, *node.resize.desired, *target):
                homes.pop(name, None)
    return homes


def fitting(demand: Demand, offers: Iterable[TypeOffer]) -> list[TypeOffer]:
    """Returns the offers whose machines could hold one of these requests, whatever the limits say."""
    return [offer for offer in offers if why_not(demand, offer.node_type) is None]
