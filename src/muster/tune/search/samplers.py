"""How a value is drawn from a domain: uniform, log-uniform, normal, grid, quantised.

Called by the domain classes. numpy is imported only when something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from muster.tune.search.domains import Categorical, Domain, Float, Integer

    Rng = np.random.Generator | np.random.RandomState
    RandomState = int | Rng | None

# How far a bound may be from a multiple of q, in units of q, and still count as that multiple.
_GRID_TOLERANCE = 1e-9


def as_rng(random_state: RandomState) -> Rng:
    """None: numpy's global state; an int: a new generator with that seed; else the object itself."""
    import numpy as np

    if random_state is None:
        return np.random.mtrand._rand
    if isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        return random_state
    return np.random.default_rng(random_state)


def _integers(rng: Rng, low: int, high: int, size: int | None) -> Any:  # noqa: ANN401 - scalar or array
    """Integers in [low, high), for both kinds of numpy's generators."""
    draw = getattr(rng, "integers", None) or rng.randint  # type: ignore[union-attr]
    return draw(low, high, size=size)


class Sampler:
    """Base class: draws `size` raw values for a domain; the domain casts them."""

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401 - scalar or array
        raise NotImplementedError

    def sample(
        self,
        domain: Domain,
        config: Any = None,  # noqa: ANN401 - accepted because Ray passes it; only functions use it
        size: int = 1,
        random_state: RandomState = None,
    ) -> Any:  # noqa: ANN401 - a value, or several
        del config
        rng = as_rng(random_state)
        if size == 1:
            return domain.cast(self.draw(domain, rng, None))
        return self.many(domain, rng, size)

    def many(self, domain: Domain, rng: Rng, size: int) -> Any:  # noqa: ANN401 - array or list
        return domain.cast_many(self.draw(domain, rng, size))

    def __str__(self) -> str:
        return type(self).__name__


BaseSampler = Sampler


class Uniform(Sampler):
    """Every value with equal chance."""

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return domain.draw_uniform(rng, size)


class LogUniform(Sampler):
    """Every order of magnitude with equal chance. `base` changes nothing about the distribution."""

    def __init__(self, base: float = 10) -> None:
        if not base > 0:
            raise AssertionError(f"the base of a log-uniform domain must be positive, not {base}")
        self.base = base

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return domain.draw_log_uniform(rng, size)


class Normal(Sampler):
    """Normally distributed around `mean`."""

    def __init__(self, mean: float = 0.0, sd: float = 0.0) -> None:
        if not sd > 0:
            raise AssertionError(f"a normal distribution needs sd > 0, not {sd}")
        self.mean, self.sd = mean, sd

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        del domain
        return rng.normal(self.mean, self.sd, size)


class Grid(Sampler):
    """Not drawn: the variant generator goes through every option."""

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        raise RuntimeError("a grid is not sampled: every value is tried; use choice() to draw one")


class Quantized(Sampler):
    """Another sampler's values, rounded to multiples of `q`."""

    def __init__(self, sampler: Sampler, q: float) -> None:
        if not q > 0:
            raise ValueError(f"a quantisation step must be positive, not {q}")
        self.sampler, self.q = sampler, q

    def get_sampler(self) -> Sampler:
        return self.sampler

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return domain.draw_quantized(self.sampler, self.q, rng, size)

    def many(self, domain: Domain, rng: Rng, size: int) -> list[Any]:
        return [domain.cast(value) for value in self.draw(domain, rng, size)]

    def __str__(self) -> str:
        return f"Quantized({self.sampler}, {self.q})"


def grid_bounds(lower: float, upper: float, q: float) -> tuple[float, float]:
    """The outermost multiples of `q` between the bounds, as indices; infinite bounds stay."""
    low = lower if math.isinf(lower) else float(math.ceil(lower / q - _GRID_TOLERANCE))
    high = upper if math.isinf(upper) else float(math.floor(upper / q + _GRID_TOLERANCE))
    return low, high


def float_uniform(domain: Float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    return rng.uniform(domain.lower, domain.upper, size)


def float_log_uniform(domain: Float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    import numpy as np

    drawn = np.exp(rng.uniform(math.log(domain.lower), math.log(domain.upper), size))
    return np.clip(drawn, domain.lower, domain.upper)  # exp(log(x)) may miss x by a rounding error


def float_quantized(domain: Float, sampler: Sampler, q: float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    """Drawn between the outermost multiples, then rounded: end points have half weight (as Ray's)."""
    import numpy as np

    low, high = grid_bounds(domain.lower, domain.upper, q)
    if low > high:
        raise ValueError(f"no multiple of {q} lies between {domain.lower} and {domain.upper}")
    inner = domain.between(low * q, high * q) if not math.isinf(low) else domain
    index = np.round(sampler.draw(inner, rng, size) / q)
    return np.clip(index * q, domain.lower, domain.upper) + 0.0  # never -0.0


def integer_uniform(domain: Integer, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    return _integers(rng, domain.lower, domain.upper, size)


def integer_log_uniform(domain: Integer, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    return _floor_log_uniform(domain.lower, domain.upper, rng, size)


def _floor_log_uniform(low: int, stop: int, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    import numpy as np

    drawn = np.floor(np.exp(rng.uniform(math.log(low), math.log(stop), size)))
    return np.clip(drawn, low, max(low, stop - 1)).astype(np.int64)


def integer_quantized(domain: Integer, sampler: Sampler, q: int, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    """The index of a multiple is drawn, so that every multiple, the upper bound included, counts the same."""
    if q == 1:
        return sampler.draw(domain, rng, size)  # as the plain domain: the upper bound is excluded
    low, high = -(-domain.lower // q), domain.upper // q
    if low > high:
        raise ValueError(f"no multiple of {q} lies between {domain.lower} and {domain.upper}")
    if isinstance(sampler, LogUniform):
        return _floor_log_uniform(int(low), int(high) + 1, rng, size) * q
    return _integers(rng, int(low), int(high) + 1, size) * q


def option_index(domain: Categorical, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    if not domain.categories:
        raise ValueError("choice() of nothing: give it at least one option")
    return _integers(rng, 0, len(domain.categories), size)


def pick(options: Sequence[Any], index: Any) -> Any:  # noqa: ANN401 - an option, or a list of them
    if getattr(index, "ndim", 0):
        return [options[i] for i in index]
    return options[index]
