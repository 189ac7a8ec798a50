"""The ways a gang can be asked for: one form per option and, with a locality, per value of its label.

Called by `engine`. Strict packing merges bundles into one item; strict spreading marks them to lie apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.base.resources import Resources
from muster.cluster.binpack.cost.asks import Ask, Avoidance, ask_of, selectors_of
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, Strategy


class Part(NamedTuple):
    """`each` equal items in one gang; each stands for `bundles` of its bundles."""

    ask: Ask
    each: int  # items
    bundles: int


class Form(NamedTuple):
    """One way to ask for a gang: all parts or nothing."""

    parts: tuple[Part, ...]
    bundles: int
    apart: bool  # its items lie on different nodes
    option: int  # which of the gang's options it is

    def marked(self, mark: Avoidance) -> Form:
        """The same with every item in the group of `mark`."""
        parts = tuple(part._replace(ask=part.ask._replace(apart=mark)) for part in self.parts)
        return self._replace(parts=parts)


def forms_of(gang: Gang, values: Sequence[str], spread_strictly: bool) -> list[Form]:
    """In order of preference; `values` are those of the gang's locality label."""
    apart = gang.strategy is Strategy.STRICT_SPREAD or (spread_strictly and gang.strategy is Strategy.SPREAD)
    forms = []
    for number, option in enumerate(gang.options):
        asked = [option]
        if gang.locality_label:
            pins = [LabelMatch(gang.locality_label, LabelOperator.IN, (value,)) for value in values]
            asked = [tuple(_pinned(demand, pin) for demand in option) for pin in pins]
        for bundles in asked:
            packed = gang.strategy is Strategy.STRICT_PACK
            parts = _merged(bundles) if packed else _counted(bundles)
            forms.append(Form(parts, sum(demand.count for demand in option), apart, number))
    return forms


def bundle_count(gang: Gang) -> int:
    """How many bundles its first option has; what an unplaced gang counts."""
    return sum(demand.count for demand in gang.options[0]) if gang.options else 0


def _pinned(demand: Demand, pin: LabelMatch) -> Demand:
    selectors = tuple((*selector, pin) for selector in selectors_of(demand.selectors) or ((),))
    return Demand(shape=demand.shape, count=demand.count, selectors=selectors, avoid=demand.avoid)


def _counted(option: Sequence[Demand]) -> tuple[Part, ...]:
    """Equal bundles together."""
    counts: dict[Ask, int] = {}
    for demand in option:
        ask = ask_of(demand)
        counts[ask] = counts.get(ask, 0) + demand.count
    ranked = sorted(counts, key=lambda ask: ask.shape)
    return tuple(Part(ask, counts[ask], 1) for ask in ranked if counts[ask])


def _merged(option: Sequence[Demand]) -> tuple[Part, ...]:
    """One item per distinct selector list, as large as its bundles together."""
    sums: dict[tuple[object, object], tuple[Ask, Resources, int]] = {}
    for demand in option:
        ask = ask_of(demand)
        key = (ask.selectors, ask.apart)
        _, shape, count = sums.get(key, (ask, Resources(), 0))
        sums[key] = (ask, shape.plus(demand.shape.positive().times(demand.count)), count + demand.count)
    return tuple(Part(ask._replace(shape=shape.key), 1, n) for ask, shape, n in sums.values() if n)
