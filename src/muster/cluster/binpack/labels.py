"""Label selectors: does a node carry what a request asks for? Called by both packing engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.cluster.model import LabelMatch, LabelOperator, Selector


def selector_holds(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether every condition holds; the empty selector holds everywhere."""
    return all(_match_holds(match, labels) for match in selector)


def first_match(selectors: Sequence[Selector], labels: Mapping[str, str]) -> int | None:
    """Index of the first selector that holds; None when none does, also when there is none at all."""
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
