"""Defines the functions with which users write a search space: uniform, choice, grid_search and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from muster.errors import public
from muster.tune.search.sample import Categorical, Float, Function, Integer

_UNSET: Any = object()


@public
def uniform(lower: float, upper: float) -> Float:
    """Draws a float from `lower` up to, without, `upper`."""
    return Float(lower, upper).uniform()


@public
def quniform(lower: float, upper: float, q: float) -> Float:
    """Draws a multiple of `q` between the bounds, both included; both must be multiples of `q`."""
    return Float(lower, upper).uniform().quantized(q)


@public
def loguniform(lower: float, upper: float, base: float = _UNSET) -> Float:
    """Draws a float whose logarithm is uniform."""
    _warn_about_base(base)
    return Float(lower, upper).loguniform()


@public
def qloguniform(lower: float, upper: float, q: float, base: float = _UNSET) -> Float:
    """Draws a log-uniform float, rounded to multiples of `q`."""
    _warn_about_base(base)
    return Float(lower, upper).loguniform().quantized(q)


@public
def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Draws a normally distributed float."""
    return Float(None, None).normal(mean, sd)


@public
def qrandn(mean: float, sd: float, q: float) -> Float:
    """Draws a normally distributed float, rounded to multiples of `q`."""
    return Float(None, None).normal(mean, sd).quantized(q)


@public
def randint(lower: int, upper: int) -> Integer:
    """Draws an integer from `lower` up to, without, `upper`."""
    return Integer(lower, upper).uniform()


@public
def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Draws a multiple of `q` between the bounds, both included; with q=1 the upper bound is excluded."""
    return Integer(lower, upper).uniform().quantized(q)


@public
def lograndint(lower: int, upper: int, base: float = _UNSET) -> Integer:
    """Draws an integer whose logarithm is uniform; the upper bound is excluded."""
    _warn_about_base(base)
    return Integer(lower, upper).loguniform()


@public
def qlograndint(lower: int, upper: int, q: int, base: float = _UNSET) -> Integer:
    """Draws a log-uniform multiple of `q`, upper bound included; with q=1 it is excluded."""
    _warn_about_base(base)
    return Integer(lower, upper).loguniform().quantized(q)


@public
def choice(categories: Sequence[Any]) -> Categorical:
    """Draws one of the options, each with equal chance."""
    return Categorical(categories).uniform()


@public
def sample_from(func: Callable[..., Any]) -> Function:
    """Takes what `func()` or `func(config)` returns; the config it is given is resolved.

    Example:
        >>> sample_from(lambda config: 2 * config["x"]).sample({"x": 4})
        8
    """
    return Function(func)


@public
def grid_search(values: Iterable[Any]) -> dict[str, Any]:
    """Tries every value, for each of the samples.

    Example:
        >>> grid_search([0.1, 0.2])
        {'grid_search': [0.1, 0.2]}
    """
    # An iterator can be read once, but each sample goes through the grid again.
    if not hasattr(values, "__iter__"):
        raise TypeError(f"grid_search({values!r}): must be a list of values, e.g. grid_search([{values!r}])")
    is_sequence = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    return {"grid_search": values if is_sequence else list(values)}


def _warn_about_base(base: float) -> None:
    if base is not _UNSET:
        warnings.warn(
            "`base` changes nothing about a log-uniform distribution and will be removed: leave it out",
            DeprecationWarning,
            stacklevel=4,
        )
