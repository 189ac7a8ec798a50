"""Requests a size that the cluster should have whatever runs on it, as `request_resources` does.

There is one such request per cluster: a new one replaces the last, an empty one takes it back. It stays when
the program that made it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from muster.base.resources import Resources
from muster.runtimes.ray.client import GcsClient

# Resources and labels, both sorted.
ResourceRequest = tuple[tuple[tuple[str, float], ...], tuple[tuple[str, str], ...]]

_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"!?({_VALUE}|in\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\))")


def count_requests(
    bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]
) -> dict[ResourceRequest, int]:
    """Returns how many requests of each kind; ValueError names a wrong one by its position."""
    if selectors and len(selectors) != len(bundles):
        raise ValueError(
            f"{len(selectors)} label selectors for {len(bundles)} bundles: give one each, {{}} for any node"
        )
    counts: dict[ResourceRequest, int] = {}
    for place, bundle in enumerate(bundles):
        selector = selectors[place] if selectors else {}
        request_key = _quantities(place, bundle), _conditions(place, selector)
        counts[request_key] = counts.get(request_key, 0) + 1
    return counts


def request(client: GcsClient, counts: Mapping[ResourceRequest, int]) -> None:
    """Replaces the current request of the cluster."""
    sizes = [dict(resources) for resources, _ in counts]
    labels = [dict(conditions) for _, conditions in counts]
    client.request_constraint(sizes, labels, list(counts.values()))


def _quantities(place: int, bundle: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    if not isinstance(bundle, Mapping) or not bundle:
        raise ValueError(f"bundle {place}: {bundle!r} is not a mapping like {{'CPU': 1}}")
    try:
        return tuple(sorted(Resources.of(bundle).to_floats().items()))
    except ValueError as error:
        raise ValueError(f"bundle {place}: {error}") from None


def _conditions(place: int, selector: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(selector, Mapping):
        raise ValueError(f"label selector {place}: {selector!r} is not a mapping of label to value")
    for label, value in selector.items():
        if not isinstance(label, str) or not isinstance(value, str) or not _SELECTOR.fullmatch(value):
            raise ValueError(
                f"label selector {place}: {label!r}: {value!r} is none of"
                " 'value', '!value', 'in(a, b)', '!in(a, b)'"
            )
    # The GCS takes a blank for a part of the value.
    return tuple(sorted((label, re.sub(r"\s", "", value)) for label, value in selector.items()))
