"""What PBT does to a configuration: check the mutations, fill in missing values, explore around a good one.

Pure: chance comes from the stream that is handed in. Called by PopulationBasedTraining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Number
from typing import Any, NamedTuple

from muster.base.rng import Stream, global_generators_at
from muster.errors import TuneError
from muster.tune.execution.names import format_vars
from muster.tune.search.domains import Categorical, Domain

Config = dict[str, Any]
Mutations = Mapping[str, Any]
Path = tuple[Any, ...]
_HOW = (
    "use a list of values, a domain (tune.uniform(...), tune.choice(...)), a function without arguments, "
    "or a dict of these"
)


class Chances(NamedTuple):
    """How far from the good configuration the new one may be."""

    resample_probability: float
    perturbation_factors: Sequence[float]


def check_mutations(mutations: Mutations, where: str) -> None:
    """TypeError or ValueError that names the key whose mutation is none."""
    for key, value in mutations.items():
        name = f"{where}[{key!r}]"
        if isinstance(value, Mapping):
            check_mutations(value, name)
        elif isinstance(value, Domain) and value.is_function():
            raise ValueError(f"{name} is tune.sample_from(...), which needs a whole configuration: {_HOW}")
        elif isinstance(value, (list, tuple)) and not value:
            raise ValueError(f"{name} is an empty list: {_HOW}")
        elif not isinstance(value, (list, tuple, Domain)) and not callable(value):
            raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: {_HOW}")


def filled(config: Mapping[str, Any], mutations: Mutations, stream: Stream) -> tuple[Config, dict[Path, Any]]:
    """A copy with a value for every mutation, and those that were missing, by their path."""
    new: Config = dict(config)
    added: dict[Path, Any] = {}
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = new.get(key, {})
            if isinstance(inner, Mapping):
                new[key], more = filled(inner, mutation, stream)
                added.update({(key, *path): value for path, value in more.items()})
        elif key not in new:
            new[key] = added[(key,)] = drawn(mutation, stream)
    return new, added


def explored(
    config: Mapping[str, Any], mutations: Mutations, chances: Chances, stream: Stream
) -> tuple[Config, dict[str, Any]]:
    """A new configuration near this one, and what was done to each value, in words."""
    new: Config = dict(config)
    done: dict[str, Any] = {}
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = new.get(key)
            new[key], done[key] = explored(
                inner if isinstance(inner, Mapping) else {}, mutation, chances, stream
            )
        elif key not in new:
            new[key], done[key] = drawn(mutation, stream), "resample"
        else:
            new[key], done[key] = _changed(new[key], mutation, chances, stream)
    return new, done


def drawn(mutation: Any, stream: Stream) -> Any:  # noqa: ANN401 - whatever a user tunes
    """A value that does not depend on the old one."""
    if isinstance(mutation, (list, tuple)):
        return mutation[stream.randrange(len(mutation))]
    seed = stream.getrandbits(32)
    if isinstance(mutation, Domain):
        return mutation.sample(random_state=seed)
    if callable(mutation):
        with global_generators_at(seed):
            return _called(mutation, "a function among hyperparam_mutations")
    raise ValueError(f"cannot draw from {mutation!r}, a {type(mutation).__name__}: {_HOW}")


def _changed(value: Any, mutation: Any, chances: Chances, stream: Stream) -> tuple[Any, str]:  # noqa: ANN401
    """A value with neighbours moves to one of them; a number is multiplied, and stays of its type."""
    if isinstance(mutation, Categorical):
        mutation = list(mutation.categories)  # a number times 1.2 need not be one of the choices
    is_list = isinstance(mutation, (list, tuple))
    has_neighbours = is_list and value in mutation
    if stream.random() < chances.resample_probability or (is_list and not has_neighbours):
        return drawn(mutation, stream), "resample"
    if is_list:
        return _shifted(mutation, mutation.index(value), stream)
    if not isinstance(value, Number):
        return drawn(mutation, stream), "resample"  # cannot be multiplied
    factor = stream.choice(chances.perturbation_factors)
    return _of_type(value, value * factor), f"* {factor}"  # type: ignore[operator]


def _shifted(values: Any, position: int, stream: Stream) -> tuple[Any, str]:  # noqa: ANN401
    step, side = ((-1, "left"), (1, "right"))[stream.randrange(2)]
    moved = min(max(position + step, 0), len(values) - 1)
    return values[moved], f"shift {side}" + (" (noop)" if moved == position else "")


def _of_type(old: Any, new: Any) -> Any:  # noqa: ANN401 - numbers of any kind
    if isinstance(old, bool):
        return bool(new)
    if isinstance(old, Integral):
        return type(old)(round(new))  # type: ignore[call-arg]
    return new


def explored_freely(config: Config, explore: Callable[[Config], Any]) -> Config:
    """What the user's own function makes of it; ValueError when it forgets to return it."""
    new = _called(explore, "custom_explore_fn", config)
    if not isinstance(new, dict):
        name = getattr(explore, "__name__", repr(explore))
        raise ValueError(
            f"custom_explore_fn {name} returned {new!r}: it must return the new configuration, a dict"
        )
    return new


def _called(function: Callable[..., Any], what: str, *arguments: Any) -> Any:  # noqa: ANN401
    try:
        return function(*arguments)
    except Exception as error:
        raise TuneError(
            f"{what} ({getattr(function, '__name__', function)}) raised {type(error).__name__}: {error}. Fix "
            "it and go on with Tuner.restore: everything up to here is saved"
        ) from error


def values_of(config: Mapping[str, Any], mutations: Mutations) -> Iterator[tuple[Path, Any]]:
    """The values that are mutated, by their path."""
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = config.get(key)
            if isinstance(inner, Mapping):
                for path, value in values_of(inner, mutation):
                    yield (key, *path), value
        elif key in config:
            yield (key,), config[key]


def perturbed_tag(original: str, config: Mapping[str, Any], mutations: Mutations) -> str:
    return f"{original}@perturbed[{format_vars(dict(values_of(config, mutations)))}]"


def original_tag(tag: str) -> str:
    """Without what earlier perturbations have added."""
    return tag.partition("@perturbed[")[0]


Explore = Callable[[Config], Config]


class PbtParameters(NamedTuple):
    """Ray's parameters without metric and mode, and our seed."""

    perturbation_interval: float
    burn_in_period: float
    hyperparam_mutations: Mapping[str, Any]
    quantile_fraction: float
    resample_probability: float
    perturbation_factors: Sequence[float]
    custom_explore_fn: Explore | None
    log_config: bool
    require_attrs: bool
    synch: bool
    seed: int | None

    @property
    def chances(self) -> Chances:
        return Chances(self.resample_probability, self.perturbation_factors)

    def check(self, name: str) -> PbtParameters:
        check_mutations(self.hyperparam_mutations, f"{name}: hyperparam_mutations")
        if not self.hyperparam_mutations and self.custom_explore_fn is None:
            raise TuneError(
                f"{name} has nothing to change: pass hyperparam_mutations={{'lr': tune.loguniform(1e-4, 1)}} "
                "or a custom_explore_fn that takes a configuration and returns a new one"
            )
        if not 0 <= self.quantile_fraction <= 0.5:
            raise ValueError(
                f"{name}: quantile_fraction is {self.quantile_fraction}; it must be between 0 and 0.5, "
                "because nobody can be among the best and the worst"
            )
        if not self.perturbation_interval > 0:
            raise ValueError(
                f"{name}: perturbation_interval is {self.perturbation_interval}; it must be above 0"
            )
        if not 0 <= self.resample_probability <= 1:
            raise ValueError(
                f"{name}: resample_probability is {self.resample_probability}; it must be between 0 and 1"
            )
        if not self.perturbation_factors:
            raise ValueError(f"{name}: perturbation_factors is empty; it must be like (1.2, 0.8)")
        return self
