"""Define the functions with which users write a search space: uniform, choice, grid_search and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from muster.errors import public
from muster.tune.search.sample import Categorical, Float, Function, Integer

_UNSET: Any = object()


@public
def uniform(lower: float, upper: float) -> Float:
    """Draw a float from `lower` up to, without, `upper`."""
    return Float(lower, upper).uniform()


@public
def quniform(lower: float, upper: float, q: float) -> Float:
    """Draw a multiple of `q` between the bounds, both included; both must be multiples of `q`.

    Args:
        lower: The smallest value.
        upper: The largest value.
        q: The step: values are multiples of it.
    """
    return Float(lower, upper).uniform().quantized(q)


@public
def loguniform(lower: float, upper: float, base: float = _UNSET) -> Float:
    """Draw a float whose logarithm is uniform.

    Args:
        lower: The smallest value.
        upper: The largest value.
        base: The base of the logarithm; it does not change the distribution.
    """
    _warn_about_base(base)
    return Float(lower, upper).loguniform()


@public
def qloguniform(lower: float, upper: float, q: float, base: float = _UNSET) -> Float:
    """Draw a log-uniform float, rounded to multiples of `q`.

    Args:
        lower: The smallest value.
        upper: The largest value.
        q: The step: values are multiples of it.
        base: The base of the logarithm; it does not change the distribution.
    """
    _warn_about_base(base)
    return Float(lower, upper).loguniform().quantized(q)


@public
def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Draw a normally distributed float.

    Args:
        mean: The mean.
        sd: The standard deviation.
    """
    return Float(None, None).normal(mean, sd)


@public
def qrandn(mean: float, sd: float, q: float) -> Float:
    """Draw a normally distributed float, rounded to multiples of `q`.

    Args:
        mean: The mean.
        sd: The standard deviation.
        q: The step: values are multiples of it.
    """
    return Float(None, None).normal(mean, sd).quantized(q)


@public
def randint(lower: int, upper: int) -> Integer:
    """Draw an integer from `lower` up to, without, `upper`."""
    return Integer(lower, upper).uniform()


@public
def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Draw a multiple of `q` between the bounds, both included; with q=1 the upper bound is excluded.

    Args:
        lower: The smallest value.
        upper: The largest value.
        q: The step: values are multiples of it.
    """
    return Integer(lower, upper).uniform().quantized(q)


@public
def lograndint(lower: int, upper: int, base: float = _UNSET) -> Integer:
    """Draw an integer whose logarithm is uniform; the upper bound is excluded.

    Args:
        lower: The smallest value.
        upper: The largest value.
        base: The base of the logarithm; it does not change the distribution.
    """
    _warn_about_base(base)
    return Integer(lower, upper).loguniform()


@public
def qlograndint(lower: int, upper: int, q: int, base: float = _UNSET) -> Integer:
    """Draw a log-uniform multiple of `q`, upper bound included; with q=1 it is excluded.

    Args:
        lower: The smallest value.
        upper: The largest value.
        q: The step: values are multiples of it.
        base: The base of the logarithm; it does not change the distribution.
    """
    _warn_about_base(base)
    return Integer(lower, upper).loguniform().quantized(q)


@public
def choice(categories: Sequence[Any]) -> Categorical:
    """Draw one of the options, each with equal chance."""
    return Categorical(categories).uniform()


@public
def sample_from(func: Callable[..., Any]) -> Function:
    """Take what `func()` or `func(config)` returns; the config it is given is resolved.

    Example:
        >>> sample_from(lambda config: 2 * config["x"]).sample({"x": 4})
        8
    """
    return Function(func)


@public
def grid_search(values: Iterable[Any]) -> dict[str, Any]:
    """Try every value, for each of the samples.

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
