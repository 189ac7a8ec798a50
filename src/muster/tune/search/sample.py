"""Define the domains of a search space and their samplers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from muster.base.lazy import lazy_names

# The functions that make domains are in `space`, which imports this module.
__getattr__, __dir__, _ = lazy_names(
    __name__,
    {
        "muster.tune.search.space": [
            *("choice", "lograndint", "loguniform", "qlograndint", "qloguniform", "qrandint", "qrandn"),
            *("quniform", "randint", "randn", "sample_from", "uniform"),
        ]
    },
)

if TYPE_CHECKING:
    import numpy as np

    Rng = np.random.Generator | np.random.RandomState
    RandomState = int | Rng | None

# How far a bound may be from a multiple of q, in units of q, and still count as that multiple.
_GRID_TOLERANCE = 1e-9


def as_rng(random_state: RandomState) -> Rng:
    """Return numpy's global state for None, a new generator for a seed, and else the object itself."""
    import numpy as np

    if random_state is None:
        return np.random.mtrand._rand
    if isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        return random_state
    return np.random.default_rng(random_state)


def _integers(rng: Rng, low: int, high: int, size: int | None) -> Any:  # noqa: ANN401 - scalar or array
    """Return integers in [low, high), for both kinds of numpy's generators."""
    draw = getattr(rng, "integers", None) or rng.randint  # type: ignore[union-attr]
    return draw(low, high, size=size)


class Sampler:
    """Draws `size` raw values for a domain; the domain casts them."""

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
        return type(self).__name__.removeprefix("_")


BaseSampler = Sampler


class Uniform(Sampler):
    """Draws every value with equal chance."""

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return domain.draw_uniform(rng, size)


class LogUniform(Sampler):
    """Draws every order of magnitude with equal chance, whatever its `base`."""

    def __init__(self, base: float = 10) -> None:
        if not base > 0:
            raise AssertionError(f"the base of a log-uniform domain must be positive, not {base}")
        self.base = base

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return domain.draw_log_uniform(rng, size)


class Normal(Sampler):
    """Draws normally distributed values around `mean`."""

    def __init__(self, mean: float = 0.0, sd: float = 0.0) -> None:
        if not sd > 0:
            raise AssertionError(f"a normal distribution needs sd > 0, not {sd}")
        self.mean, self.sd = mean, sd

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        del domain
        return rng.normal(self.mean, self.sd, size)


class Grid(Sampler):
    """Not drawn from: the variant generator enumerates every option."""

    def draw(self, domain: Domain, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        raise RuntimeError("a grid is not sampled: every value is tried; use choice() to draw one")


class Quantized(Sampler):
    """Rounds another sampler's values to multiples of `q`."""

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
    """Return the outermost multiples of `q` between the bounds, as indices; infinite bounds stay."""
    low = lower if math.isinf(lower) else float(math.ceil(lower / q - _GRID_TOLERANCE))
    high = upper if math.isinf(upper) else float(math.floor(upper / q + _GRID_TOLERANCE))
    return low, high


def _floor_log_uniform(low: int, stop: int, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
    import numpy as np

    drawn = np.floor(np.exp(rng.uniform(math.log(low), math.log(stop), size)))
    return np.clip(drawn, low, max(low, stop - 1)).astype(np.int64)


def is_among(value: Any, options: Any) -> bool:  # noqa: ANN401 - what a user wrote, and a sequence
    try:
        return bool(value in options)
    except (TypeError, ValueError):  # arrays compare to arrays, not to a truth value
        return any(value is option for option in options)


D = TypeVar("D", bound="Domain")


class Domain:
    """A set of values and at most one way to draw from it."""

    # Libraries tell domains by the class of their samplers, with Ray's private names: each has its own.
    default_sampler_cls: type[Sampler] = Uniform
    _LogUniform = LogUniform
    sampler: Sampler | None = None

    def cast(self, value: Any) -> Any:  # noqa: ANN401 - what the user gets
        """Return a drawn value as the type users see."""
        return value

    def cast_many(self, values: Any) -> Any:  # noqa: ANN401 - an array
        return values

    def set_sampler(self, sampler: Sampler, allow_override: bool = False) -> None:
        """Set how values are drawn; a second choice is refused."""
        if self.sampler is not None and not allow_override:
            raise ValueError(
                f"{self!r} already has the sampler {self.sampler}: a domain takes one, "
                f"so {sampler} cannot be added"
            )
        self.sampler = sampler

    def get_sampler(self) -> Sampler:
        return self.sampler if self.sampler is not None else self.default_sampler_cls()

    def with_sampler(self: D, sampler: Sampler, allow_override: bool = False) -> D:
        new = copy.copy(self)
        new.set_sampler(sampler, allow_override)
        return new

    def quantized(self: D, q: float) -> D:
        """Return the same domain on multiples of `q`."""
        return self.with_sampler(Quantized(self.get_sampler(), q), allow_override=True)

    def sample(
        self,
        config: Any = None,  # noqa: ANN401 - handed to functions
        size: int = 1,
        random_state: RandomState = None,
    ) -> Any:  # noqa: ANN401
        """Return one value; with `size` above 1 an array (plain numbers) or a list."""
        return self.get_sampler().sample(self, config=config, size=size, random_state=random_state)

    def is_grid(self) -> bool:
        return isinstance(self.sampler, Grid)

    def is_function(self) -> bool:
        return False

    def is_valid(self, value: Any) -> bool:  # noqa: ANN401 - anything a user may write
        """Return whether a user may preset this value. Never raises."""
        raise NotImplementedError

    @property
    def domain_str(self) -> str:
        raise NotImplementedError

    def draw_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        raise ValueError(f"{self!r} cannot be drawn uniformly")

    def draw_log_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        raise ValueError(f"{self!r} cannot be drawn on a log scale")

    def draw_quantized(self, sampler: Sampler, q: float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        raise ValueError(f"{self!r} cannot be quantised")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.domain_str}, {self.get_sampler()})"


class _Range(Domain):
    """Holds numbers between two bounds."""

    lower: float
    upper: float

    def is_valid(self, value: Any) -> bool:  # noqa: ANN401
        # Ray lets a value that cannot be compared raise; here it is simply not in the domain.
        try:
            return bool(self.lower <= value <= self.upper)
        except (TypeError, ValueError):
            return False

    @property
    def domain_str(self) -> str:
        return f"({self.lower}, {self.upper})"

    def _require_log_bounds(self) -> None:
        if not all(0 < bound < math.inf for bound in (self.lower, self.upper)):
            name = "lograndint" if isinstance(self, Integer) else "loguniform"
            raise ValueError(
                f"{name}{self.domain_str}: a log scale needs finite bounds above 0; "
                "did you pass the exponents, e.g. -4 instead of 1e-4?"
            )


def _require_numbers(name: str, *bounds: Any) -> None:  # noqa: ANN401 - what a user wrote
    if any(bound is not None and not hasattr(bound, "__float__") for bound in bounds):
        written = f"{name}({', '.join(map(repr, bounds))})"
        raise TypeError(
            f"{written}: the bounds must be numbers, not texts or other things: leave out the quotes"
        )


class Float(_Range):
    """Holds real numbers from `lower` to `upper`; None: unbounded."""

    class _Uniform(Uniform): ...

    default_sampler_cls = _Uniform

    def __init__(self, lower: float | None, upper: float | None) -> None:
        super().__init__()
        _require_numbers("uniform", lower, upper)
        self.lower = -math.inf if lower is None else lower
        self.upper = math.inf if upper is None else upper

    def cast(self, value: Any) -> float:  # noqa: ANN401
        return float(value)

    def between(self, lower: float, upper: float) -> Float:
        new = copy.copy(self)
        new.lower, new.upper = lower, upper
        return new

    def uniform(self) -> Float:
        if not (self.lower > -math.inf and self.upper < math.inf):
            raise ValueError(f"a uniform domain needs finite bounds, not {self.domain_str}")
        return self.with_sampler(self._Uniform())

    def loguniform(self, base: float = 10) -> Float:
        self._require_log_bounds()
        return self.with_sampler(LogUniform(base))

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Float:
        return self.with_sampler(Normal(mean, sd))

    def quantized(self, q: float) -> Float:
        new = self.with_sampler(Quantized(self.get_sampler(), q), allow_override=True)
        for bound in (self.lower, self.upper):
            if math.isfinite(bound) and not math.isclose(bound / q, round(bound / q), abs_tol=1e-9):
                raise ValueError(
                    f"the bound {bound} is not a multiple of the quantisation step {q}: change one of them"
                )
        return new

    def draw_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return rng.uniform(self.lower, self.upper, size)

    def draw_log_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        import numpy as np

        drawn = np.exp(rng.uniform(math.log(self.lower), math.log(self.upper), size))
        return np.clip(drawn, self.lower, self.upper)  # exp(log(x)) may miss x by a rounding error

    def draw_quantized(self, sampler: Sampler, q: float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        """Draw between the outermost multiples, then rounds: end points have half weight, as in Ray."""
        import numpy as np

        low, high = grid_bounds(self.lower, self.upper, q)
        if low > high:
            raise ValueError(f"no multiple of {q} lies between {self.lower} and {self.upper}")
        inner = self.between(low * q, high * q) if not math.isinf(low) else self
        index = np.round(sampler.draw(inner, rng, size) / q)
        return np.clip(index * q, self.lower, self.upper) + 0.0  # never -0.0


class Integer(_Range):
    """Holds whole numbers from `lower` up to, without, `upper`."""

    class _Uniform(Uniform): ...

    default_sampler_cls = _Uniform

    lower: int
    upper: int

    def __init__(self, lower: int, upper: int) -> None:
        super().__init__()
        _require_numbers("randint", lower, upper)
        if lower % 1 or upper % 1:
            raise ValueError(
                f"randint({lower!r}, {upper!r}): the bounds must be whole numbers; uniform takes others"
            )
        self.lower, self.upper = lower, upper

    def cast(self, value: Any) -> int:  # noqa: ANN401
        return int(value)

    def uniform(self) -> Integer:
        return self.with_sampler(self._Uniform())

    def loguniform(self, base: float = 10) -> Integer:
        self._require_log_bounds()
        return self.with_sampler(LogUniform(base))

    def draw_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return _integers(rng, self.lower, self.upper, size)

    def draw_log_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        return _floor_log_uniform(self.lower, self.upper, rng, size)

    def draw_quantized(self, sampler: Sampler, q: float, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        """Draw the index of a multiple: every multiple, the upper bound included, has equal weight."""
        step = int(q)
        if step == 1:
            return sampler.draw(self, rng, size)  # as the plain domain: the upper bound is excluded
        low, high = -(-self.lower // step), self.upper // step
        if low > high:
            raise ValueError(f"no multiple of {step} lies between {self.lower} and {self.upper}")
        if isinstance(sampler, LogUniform):
            return _floor_log_uniform(int(low), int(high) + 1, rng, size) * step
        return _integers(rng, int(low), int(high) + 1, size) * step


class Categorical(Domain):
    """Holds the given options, whatever their types."""

    class _Uniform(Uniform): ...

    default_sampler_cls = _Uniform

    def __init__(self, categories: Sequence[Any]) -> None:
        super().__init__()
        if not hasattr(categories, "__iter__"):
            raise TypeError(
                f"choice({categories!r}): must be a list of options, e.g. choice([{categories!r}])"
            )
        self.categories = list(categories)

    def uniform(self) -> Categorical:
        return self.with_sampler(self._Uniform())

    def grid(self) -> Categorical:
        """Try every option instead of drawing one."""
        return self.with_sampler(Grid())

    def is_valid(self, value: Any) -> bool:  # noqa: ANN401
        return is_among(value, self.categories)

    @property
    def domain_str(self) -> str:
        return f"{self.categories}"

    def draw_uniform(self, rng: Rng, size: int | None) -> Any:  # noqa: ANN401
        if not self.categories:
            raise ValueError("choice() of nothing: give it at least one option")
        index = _integers(rng, 0, len(self.categories), size)
        return [self.categories[i] for i in index] if size is not None else self.categories[index]

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return self.categories[index]


class Function(Domain):
    """Yields whatever the user's function returns, given nothing or the configuration."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(func):
            raise TypeError(f"sample_from({func!r}): must be a function of nothing or of the config")
        self.func = func
        self.pass_config = _takes_config(func)

    def call(self, config: Any) -> Any:  # noqa: ANN401
        return self.func(config) if self.pass_config else self.func()

    def sample(self, config: Any = None, size: int = 1, random_state: RandomState = None) -> Any:  # noqa: ANN401
        del random_state  # the function draws from its own stream
        return self.call(config) if size == 1 else [self.call(config) for _ in range(size)]

    def is_function(self) -> bool:
        return True

    def is_valid(self, value: Any) -> bool:  # noqa: ANN401
        return True

    @property
    def domain_str(self) -> str:
        return f"{self.func}()"

    def __repr__(self) -> str:
        return f"Function({self.func!r})"


def _takes_config(func: Callable[..., Any]) -> bool:
    import inspect

    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):
        return False  # some builtins have no signature; those that are useful here take nothing
    candidates: tuple[tuple[Any, ...], ...] = (({},), ())
    for arguments in candidates:
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise ValueError(
        f"sample_from() takes a function of nothing or of the config, but {func!r} takes {signature}"
    )
