"""Offer what a program may ask of its cluster's autoscaler, with Ray's names and signatures.

Works in a Ray driver, or anywhere with RAY_ADDRESS (and RAY_AUTH_MODE and the token, where one is wanted).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.errors import public

if TYPE_CHECKING:
    from muster.runtimes.ray.client import GcsClient
    from muster.runtimes.ray.status import ClusterStatus

__all__ = ["get_cluster_status", "request_resources"]

TIMEOUT_S = 10.0
# Resources and labels, both sorted.
ResourceRequest = tuple[tuple[tuple[str, float], ...], tuple[tuple[str, str], ...]]

_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"!?({_VALUE}|in\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\))")


@public
def request_resources(
    num_cpus: int | None = None,
    bundles: Sequence[Mapping[str, float]] | None = None,
    bundle_label_selectors: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Ask the autoscaler for a cluster that could hold all of this at once, whatever runs there now.

    A hint that stays until the next call replaces it, also when this program ends; a call without arguments
    takes it back. `num_cpus` means that many bundles of one CPU. `bundle_label_selectors` has one entry per
    bundle, like `{"tier": "in(a, b)", "region": "!us"}`; `{}` means any node.

    Example:
        request_resources(num_cpus=16)
        request_resources(bundles=[{"GPU": 1}] * 2, bundle_label_selectors=[{"tier": "fast"}, {}])
    """
    if num_cpus is not None and (isinstance(num_cpus, bool) or not isinstance(num_cpus, int) or num_cpus < 0):
        raise ValueError(f"num_cpus: {num_cpus!r} is not a whole number of CPUs")
    if bundle_label_selectors and not bundles:
        raise ValueError("bundle_label_selectors without bundles: each selector belongs to one bundle")
    counts = count_requests(list(bundles or ()), list(bundle_label_selectors or ()))
    if num_cpus:
        one_cpu = ((("CPU", 1.0),), ())
        counts[one_cpu] = counts.get(one_cpu, 0) + num_cpus
    sizes = [dict(resources) for resources, _ in counts]
    labels = [dict(conditions) for _, conditions in counts]
    _link(None, TIMEOUT_S).request_constraint(sizes, labels, list(counts.values()))


@public
def get_cluster_status(gcs_address: str | None = None, timeout: float = TIMEOUT_S) -> ClusterStatus:
    """Return nodes, launch under way, failures, and the requests that wait or can never be placed.

    `gcs_address` is host:port of the head; by default the cluster of this program. `str()` of the answer is
    for users.

    Args:
        gcs_address: host:port of the head; by default the cluster of this program.
        timeout: Seconds to wait for the answer.
    """
    reply = _link(gcs_address, timeout).cluster_status()
    from muster.runtimes.ray.status import status_from_bytes

    return status_from_bytes(reply)


def _link(gcs_address: str | None, timeout_s: float) -> GcsClient:
    from muster.runtimes.ray.client import GcsClient
    from muster.runtimes.ray.native import find_address

    return GcsClient(find_address(gcs_address), call_timeout_s=timeout_s)


def count_requests(
    bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]
) -> dict[ResourceRequest, int]:
    """Return how many requests of each kind; ValueError names a wrong one by its position."""
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


def _quantities(place: int, bundle: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    if not isinstance(bundle, Mapping) or not bundle:
        raise ValueError(f"bundle {place}: {bundle!r} is not a mapping like {{'CPU': 1}}")
    from muster.base.resources import Resources

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
