"""Check a search space when it is given, before a trial starts; its errors name the parameter.

Called by what takes a `param_space`. Nothing is drawn here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.base.untrusted import ray_object_hint, type_text
from muster.tune.search.paths import Path, children, is_container
from muster.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Quantized, grid_bounds

logger = logging.getLogger(__name__)

LARGE = 1_000_000  # bytes that are noticed when each trial stores and sends them
_LONG = 100_000  # a list this long is data: nobody writes domains into it


def check_space(space: Mapping[str, Any], where: str = "param_space") -> None:
    """Raise ValueError for a domain or a grid that no value can come from; warns of large values once."""
    large: list[tuple[str, str]] = []
    for path, value in _leaves(dict(space), ()):
        place = where + "".join(f"[{key!r}]" for key in path)
        if isinstance(value, Domain):
            fault = _fault(value)
        else:
            fault = _grid_fault(path, value) if isinstance(value, dict) else _not_a_value(value)
            size = _size(value)
            if size >= LARGE:
                large.append((place, f"{type_text(value)} of {size / 1e6:.0f} MB"))
        if fault:
            raise ValueError(f"{place}: {fault}")
    if large:
        logger.warning(
            "%s is %s, which is stored and sent with every trial%s: pass it with tune.with_parameters",
            *large[0],
            "" if len(large) == 1 else f", and {len(large) - 1} more are as large",
        )


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:  # noqa: ANN401
    """Yield domains, grids and plain values; also those among the options of a choice or a grid."""
    options: Any = None
    if isinstance(node, Categorical):
        options = node.categories
    elif isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
        options = node["grid_search"]
    if options is None and is_container(node) and len(node) < _LONG:
        for key, child in children(node):
            yield from _leaves(child, (*path, key))
        return
    yield path, node
    if isinstance(options, (list, tuple)) and len(options) < _LONG:
        for index, option in enumerate(options):
            if not isinstance(option, (int, float, str)):
                yield from _leaves(option, (*path, index))


def _fault(domain: Domain) -> str:
    if isinstance(domain, Categorical):
        return (
            "" if domain.categories else "choice([]) has nothing to choose from: give it at least one option"
        )
    if not isinstance(domain, (Float, Integer)):
        return ""
    sampler = domain.get_sampler()
    q = sampler.q if isinstance(sampler, Quantized) else None
    if domain.lower > domain.upper:
        return f"{_written(domain)} has its lower bound above its upper bound: swap them"
    if isinstance(domain, Integer) and q in (None, 1) and domain.lower >= domain.upper:
        return f"{_written(domain)} is empty, because only numbers below the upper bound are drawn: raise it"
    if q is not None:
        low, high = grid_bounds(domain.lower, domain.upper, q)
        if low > high:
            return f"{_written(domain)}: no multiple of {q} lies between the bounds: change one of the three"
    return ""


def _written(domain: Float | Integer) -> str:
    """Return the domain as users write it."""
    sampler = domain.get_sampler()
    step = f", {sampler.q!r}" if isinstance(sampler, Quantized) else ""
    inner = sampler.get_sampler() if isinstance(sampler, Quantized) else sampler
    name = ("log" if isinstance(inner, LogUniform) else "") + (
        "randint" if isinstance(domain, Integer) else "uniform"
    )
    return f"{'q' if step else ''}{name}({domain.lower!r}, {domain.upper!r}{step})"


def _grid_fault(path: Path, value: Mapping[str, Any]) -> str:
    options = value.get("grid_search", [None])
    if isinstance(options, str) or not hasattr(options, "__iter__"):
        return f"grid_search({options!r}) needs a list of values: write grid_search([{options!r}])"
    if hasattr(options, "__len__") and not len(options):
        return "grid_search([]) has no values, so there would be no trial: give it at least one"
    if not path and isinstance(value.get("grid_search"), list) and not isinstance(options[0], Mapping):
        return f"a grid of whole configs holds dicts; name the parameter: {{'x': grid_search({options!r})}}"
    return ""


def _not_a_value(value: Any) -> str:  # noqa: ANN401
    """Return what to do about a function that was not called, or a domain of Ray Tune; "" for a value."""
    if getattr(value, "__module__", None) == "muster.tune.search.space" and callable(value):
        return f"is the function {value.__name__} itself; call it, e.g. tune.{value.__name__}(...)"
    if ray_object_hint(value, ("ray.tune.search.",)):  # it would be a constant here
        what = f"{type(value).__name__} is a domain of Ray's own"
        return f"{what}: make it with muster's tune (`muster compat SCRIPT` shows where Ray's is imported)"
    return ""


def _size(value: Any) -> int:  # noqa: ANN401 - whatever a user puts into a space
    """Return the bytes of an array, a table, a text or a long list; 0 when they are not known."""
    try:
        if isinstance(value, (str, bytes, bytearray, list, tuple)):
            return sys.getsizeof(value)
        if hasattr(value, "memory_usage"):  # pandas
            usage = value.memory_usage()
            return int(getattr(usage, "sum", lambda: usage)())
        return int(getattr(value, "nbytes", 0))
    except Exception:  # noqa: BLE001 - an object of any library
        return 0


def checked_points(owner: object, given: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the points of `points_to_evaluate`."""
    if given and not all(isinstance(point, Mapping) for point in given):
        raise ValueError(f"{type(owner).__name__}(points_to_evaluate=...): must be a list of dicts")
    return [dict(point) for point in given or ()]
