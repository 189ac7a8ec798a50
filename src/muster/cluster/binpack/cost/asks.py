"""Requests as the cost engine groups them: equal ones are one class, whoever asked.

Called by `stock`, `forms` and `engine`. Knows shapes and selectors, not where anything goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from muster.base.resources import ItemKey, Resources
from muster.cluster.binpack.labels import selector_holds
from muster.cluster.model import Demand, Selector


class Avoidance(NamedTuple):
    """At most `most` requests with this mark on one node; none on a node that carries `label` (= `value`).

    `value` None: whatever the label's value. `number` tells groups of equal gangs apart.
    """

    label: str
    value: str | None
    most: int = 1
    number: int = -1


class Ask(NamedTuple):
    """One class of equal requests."""

    shape: ItemKey  # without zeros
    selectors: tuple[Selector, ...] = ()  # none: any node
    apart: Avoidance | None = None


def shape_key(shape: Resources) -> ItemKey:
    key = shape.key
    return key if all(units for _, units in key) else tuple(pair for pair in key if pair[1])


def ask_of(demand: Demand) -> Ask:
    apart = Avoidance(*demand.avoid) if demand.avoid is not None else None
    return Ask(shape_key(demand.shape), selectors_of(demand.selectors), apart)


def selectors_of(selectors: tuple[Selector, ...]) -> tuple[Selector, ...]:
    """Without what comes after a selector that holds everywhere; none at all when that is the first."""
    for index, selector in enumerate(selectors):
        if not selector:
            return selectors[: index + 1] if index else ()
    return selectors


def admits(ask: Ask, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels may hold it, as far as selectors go."""
    return not ask.selectors or any(selector_holds(selector, labels) for selector in ask.selectors)


def carries(labels: Mapping[str, str], apart: Avoidance) -> bool:
    """Whether a node with these labels is closed to the group."""
    value = labels.get(apart.label)
    return value is not None and (apart.value is None or value == apart.value)
