"""Compares two configurations, and applies the difference: a price that moves must not repeat the rest."""

from __future__ import annotations

from msgspec.structs import replace

from muster.cluster.model import ClusterSpec, NodeType
from muster.stores.history.entries import SpecChange


def spec_change(old: ClusterSpec | None, new: ClusterSpec) -> SpecChange | None:
    """Returns what is different in the new configuration; None when nothing is."""
    if old is new or old == new:
        return None
    before = {known.name: known for known in old.node_types} if old is not None else {}
    order = tuple(known.name for known in new.node_types)
    types: list[NodeType] = []
    prices: dict[str, dict[str, float | None]] = {}
    for known in new.node_types:
        was = before.get(known.name)
        if was == known:
            continue
        if was is not None and _without_prices(was) == _without_prices(known):
            pairs = zip(was.offers, known.offers, strict=True)
            prices[known.name] = {
                str(position): offer.price_per_hour
                for position, (other, offer) in enumerate(pairs)
                if other != offer
            }
        else:
            types.append(known)
    rest = replace(new, node_types=())
    return SpecChange(
        rest=None if old is not None and replace(old, node_types=()) == rest else rest,
        order=None if order == tuple(before) else order,
        types=tuple(types),
        prices=prices,
    )


def changed_spec(old: ClusterSpec | None, change: SpecChange) -> ClusterSpec:
    """Returns the configuration after a change."""
    base = change.rest or old or ClusterSpec()
    types = {known.name: known for known in old.node_types} if old is not None else {}
    types.update({known.name: known for known in change.types})
    for name, prices in change.prices.items():
        known = types[name]
        offers = [
            replace(offer, price_per_hour=prices[str(at)]) if str(at) in prices else offer
            for at, offer in enumerate(known.offers)
        ]
        types[name] = replace(known, offers=tuple(offers))
    order = tuple(types) if change.order is None else change.order
    return replace(base, node_types=tuple(types[name] for name in order))


def _without_prices(known: NodeType) -> NodeType:
    return replace(known, offers=tuple(replace(offer, price_per_hour=None) for offer in known.offers))
