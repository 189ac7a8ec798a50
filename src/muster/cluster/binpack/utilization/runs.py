"""Requests in the order in which they are tried: equal neighbours are one run with a count.

Built for every attempt from demands or from the bundles of a gang; knows nothing of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, LabelMatch, LabelOperator, Selector, Strategy

Avoid = tuple[str, str]  # a label and its value
SortKey = tuple[int, int, int, int, tuple[tuple[str, int], ...]]


class Request(NamedTuple):
    """`amount` equal requests of one item; `bundles` > 1 for the merged bundles of a STRICT_PACK gang."""

    shape: Resources
    selectors: tuple[Selector, ...]
    avoid: Avoid | None
    item: int
    amount: int
    bundles: int = 1


class Share(NamedTuple):
    """What one item has in a run."""

    item: int
    amount: int
    bundles: int


class Run(NamedTuple):
    """Neighbours in the order of trying that are equal in all that matters to a node."""

    shape: Resources
    selectors: tuple[Selector, ...]
    avoid: Avoid | None
    amount: int
    shares: tuple[Share, ...]


def runs_of(requests: Iterable[Request]) -> tuple[Run, ...]:
    """In order of trying: hardest to place first; equal keys keep the order in which they came."""
    ordered = sorted((r for r in requests if r.amount > 0), key=_sort_key, reverse=True)
    return tuple(_run(list(equal)) for _, equal in groupby(ordered, key=lambda request: request[:3]))


def _run(equal: Sequence[Request]) -> Run:
    shares = tuple(Share(request.item, request.amount, request.bundles) for request in equal)
    return Run(*equal[0][:3], sum(share.amount for share in shares), shares)


def _sort_key(request: Request) -> SortKey:
    # Affinity is left out: within one attempt either every request has it or none does.
    shape = request.shape
    return (
        0 if request.avoid is None else 1,
        len(request.selectors[0]) if request.selectors else 0,
        len(shape),
        sum(value for _, value in shape.key),
        shape.key,
    )


def demand_requests(demands: Sequence[Demand]) -> Iterator[Request]:
    for item, demand in enumerate(demands):
        yield Request(demand.shape, demand.selectors, demand.avoid, item, demand.count)


def gang_order(gangs: Sequence[Gang]) -> list[int]:
    """Most constrained first, then largest first; equal ones as they came."""
    return sorted(range(len(gangs)), key=lambda item: _gang_key(gangs[item]), reverse=True)


def _gang_key(gang: Gang) -> tuple[int, int]:
    bundles = gang.options[0] if gang.options else ()
    count = bundle_count(gang)
    if gang.strategy in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD):
        return count, count
    return sum(bundle.count for bundle in bundles if bundle.avoid is not None), count


def bundle_count(gang: Gang) -> int:
    return sum(bundle.count for bundle in gang.options[0]) if gang.options else 0


def gang_requests(item: int, gang: Gang, option: Sequence[Demand], locality: str | None) -> list[Request]:
    """One way to ask for the gang: this alternative, all of it where the locality label has this value."""
    avoid = (gang.label, "") if gang.strategy is Strategy.STRICT_SPREAD else None
    match = None if locality is None else LabelMatch(gang.locality_label, LabelOperator.IN, (locality,))
    requests = []
    for bundle in option:
        selectors = bundle.selectors
        if match is not None:
            selectors = tuple((*selector, match) for selector in selectors or ((),))
        requests.append(Request(bundle.shape, selectors, avoid or bundle.avoid, item, bundle.count))
    return _merged(requests) if gang.strategy is Strategy.STRICT_PACK else requests


def _merged(requests: Iterable[Request]) -> list[Request]:
    """Bundles that must share a node as one big request; those with another selector stay apart."""
    whole: dict[tuple[object, ...], Request] = {}
    for request in requests:
        if request.amount <= 0:
            continue
        key = request[1:3]
        shape = request.shape.times(request.amount)
        before = whole.get(key)
        if before is None:
            whole[key] = request._replace(shape=shape, amount=1, bundles=request.amount)
        else:
            bundles = before.bundles + request.amount
            whole[key] = before._replace(shape=before.shape.plus(shape), bundles=bundles)
    return list(whole.values())
