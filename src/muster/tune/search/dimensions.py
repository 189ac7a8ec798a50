"""Describe a search space as a list of dimensions, from which every adapter of a search library converts.

A dimension has bounds that are both included, so adapters need not think about them again. Values on the
library's side are numbers; an option of a choice is its place in the list, so that any object can be one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.tune.search.check_space import check_space
from muster.tune.search.paths import (
    Path,
    children,
    filled,
    flat_name,
    flattened,
    is_container,
    is_equal,
    rebuilt,
)
from muster.tune.search.placeholders import is_placeholder
from muster.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Integer,
    LogUniform,
    Normal,
    Quantized,
    Uniform,
    grid_bounds,
)
from muster.tune.search.variant_generator import find_unresolved, has_unresolved_values

logger = logging.getLogger(__name__)

Feature = Literal["int", "choice", "log", "step", "log step", "normal"]
_STORABLE = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Dimension:
    """One variable of a space. `mean` and `sd` are set when it is normally distributed."""

    name: str
    path: Path
    kind: Literal["float", "int", "choice"]
    low: float = -math.inf
    high: float = math.inf
    is_log: bool = False
    step: float | None = None
    mean: float | None = None
    sd: float | None = None
    options: tuple[Any, ...] = ()

    @property
    def is_single(self) -> bool:
        """Return whether only one value is possible; many libraries refuse to search that."""
        return len(self.options) == 1 if self.kind == "choice" else self.low == self.high

    def decoded(self, value: Any) -> Any:  # noqa: ANN401 - a library's number
        """Return the user's value; rounding errors of the library do not leave the bounds."""
        if self.kind == "choice":
            return self.options[int(value)]
        number = float(value)
        if self.step is not None:
            number = round(number / self.step) * self.step
        number = min(max(number, self.low), self.high)
        return round(number) if self.kind == "int" else number

    def encoded(self, value: Any) -> float:  # noqa: ANN401 - whatever a user wrote
        """Return the library's number of a user's value; ValueError when the dimension does not have it."""
        if self.kind == "choice":
            return self.place(value)
        if isinstance(value, bool) or (
            not isinstance(value, (int, float)) and not hasattr(value, "__float__")
        ):
            raise ValueError(f"'{self.name}' is {value!r}, which is not a number")
        number = float(value)
        if not self.low <= number <= self.high:
            raise ValueError(f"'{self.name}' is {value!r}, which is not between {self.low} and {self.high}")
        return round(number) if self.kind == "int" else number

    def place(self, value: Any) -> int:  # noqa: ANN401
        """Return the index of this value among the options."""
        for index, option in enumerate(self.options):
            if option is value or (type(option) is type(value) and is_equal(option, value)):
                return index
        for index, option in enumerate(self.options):
            if is_equal(option, value):
                return index
        raise ValueError(f"'{self.name}' is {value!r}, which is none of {list(self.options)!r}")


class Dimensions:
    """Holds the dimensions of one space by flat name, and makes suggestions of their values.

    Args:
        owner: The searcher that asks, for its error messages.
        space: A search space with domains.
        features: What its library can search besides uniform floats. A missing "step" is dropped with a
            warning, because the values stay inside the bounds; anything else is refused.
    """

    def __init__(self, owner: str, space: Mapping[str, Any], features: Collection[Feature]) -> None:
        self._owner, self._features = owner, features
        check_space(space, "space")
        unresolved = find_unresolved(iter([((), dict(space))]))
        self._refuse(unresolved.grids, unresolved.functions)
        self.all: dict[str, Dimension] = {}
        for path, domain in unresolved.domains.items():
            name = checked_name(owner, path)
            self.all[name] = self._dimension(name, path, domain)
        self.skeleton = open_branches(dict(space))

    @property
    def variable(self) -> dict[str, Dimension]:
        """Return those with more than one value; the others are filled in by `suggestion`."""
        return {name: one for name, one in self.all.items() if not one.is_single}

    def suggestion(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the library's numbers in the shape of the space, without the constants."""
        found: dict[Path, Any] = {}
        for name, one in self.all.items():
            if name in values:
                found[one.path] = one.decoded(values[name])
            elif one.is_single:
                found[one.path] = one.decoded(0 if one.kind == "choice" else one.low)
        return dict(filled(self.skeleton, found))

    def joined(self, space: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the space with a library's own description of each dimension in place of its domain."""
        return dict(filled(dict(space), {self.all[name].path: part for name, part in parts.items()}))

    def values(self, point: Mapping[str, Any]) -> dict[str, float]:
        """Return a user's point as numbers; ValueError when it misses a variable or has a value outside."""
        flat = flat_point(point)
        missing = [name for name in self.variable if name not in flat]
        if missing:
            raise ValueError(f"{self._owner}: the point {dict(point)!r} lacks {', '.join(missing)}")
        try:
            return {name: one.encoded(flat[name]) for name, one in self.variable.items()}
        except ValueError as error:
            raise ValueError(f"{self._owner}: in the point {dict(point)!r}, {error}") from None

    def _refuse(self, grids: Any, functions: Any) -> None:  # noqa: ANN401
        for path, _ in grids:
            refuse_grid(self._owner, flat_name(path))
        for path, function in functions.items():
            raise ValueError(
                f"{self._owner} cannot suggest {function!r} at '{flat_name(path)}': use a domain"
            )

    def _dimension(self, name: str, path: Path, domain: Domain) -> Dimension:
        if isinstance(domain, Categorical):
            return self._choice(name, path, domain)
        found = dimension_of(name, path, domain)
        if found is None or (found.sd is not None and "normal" not in self._features):
            known = "uniform and log-uniform" if "log" in self._features else "uniform"
            raise ValueError(
                f"{self._owner} cannot draw '{name}' from {domain!r}: it supports {known} numbers"
            )
        self._require(found.kind == "int", "int", found, "only real numbers: use uniform()")
        self._require(found.is_log, "log", found, "no log scale: use uniform(), or search the exponent")
        return self._with_step_or_without(found)

    def _choice(self, name: str, path: Path, domain: Categorical) -> Dimension:
        options = tuple(domain.categories)
        for index, option in enumerate(options):
            if has_unresolved_values(option):
                raise ValueError(
                    f"{self._owner}: option {index} of the choice '{name}' holds further domains; "
                    'use search_alg="auto", OptunaSearch or HyperOptSearch'
                )
        found = Dimension(name, path, "choice", options=options)
        self._require(True, "choice", found, "only real numbers: use uniform(), or another searcher")
        return found

    def _require(self, is_needed: bool, feature: Feature, one: Dimension, fix: str) -> None:
        if is_needed and feature not in self._features:
            raise ValueError(f"{self._owner} cannot search '{one.name}': it takes {fix}")

    def _with_step_or_without(self, one: Dimension) -> Dimension:
        needed: Feature = "log step" if one.is_log else "step"
        if one.step is None or needed in self._features:
            return one
        kind = "is log-uniform, for which it" if one.is_log and "step" in self._features else "has a step; it"
        logger.warning("%s: '%s' %s supports no step; %s is dropped", self._owner, one.name, kind, one.step)
        return Dimension(one.name, one.path, one.kind, one.low, one.high, one.is_log, None, one.mean, one.sd)


def dimension_of(name: str, path: Path, domain: Domain) -> Dimension | None:
    """Return a numeric domain as a dimension; None for an unknown kind of domain or sampler."""
    sampler = domain.get_sampler()
    q = sampler.q if isinstance(sampler, Quantized) else None
    if isinstance(sampler, Quantized):
        sampler = sampler.get_sampler()
    if not isinstance(domain, (Float, Integer)) or not isinstance(sampler, (Uniform, LogUniform, Normal)):
        return None
    is_log = isinstance(sampler, LogUniform)
    mean, sd = (sampler.mean, sampler.sd) if isinstance(sampler, Normal) else (None, None)
    if isinstance(domain, Float):
        return Dimension(name, path, "float", domain.lower, domain.upper, is_log, q, mean, sd)
    # Without a step, the upper bound of an integer is excluded; with one it is included.
    step = None if q == 1 else q
    low, high = float(domain.lower), float(domain.upper - 1)
    if step is not None:
        first, last = grid_bounds(domain.lower, domain.upper, step)
        low, high = first * step, last * step
    if low > high:
        raise ValueError(f"'{name}', {domain!r}, has no value: its upper bound must be above the lower one")
    return Dimension(name, path, "int", low, high, is_log, step, mean, sd)


def refuse_grid(owner: str, name: str) -> None:
    raise ValueError(
        f"{owner} cannot take the grid_search at '{name}': "
        "use choice(), or run without a searcher to go through the grid"
    )


def checked_name(owner: str, path: Path) -> str:
    for part in path:
        if isinstance(part, str) and "/" in part:
            raise ValueError(f"{owner} joins nested keys with '/', so the key {part!r} must not hold one")
    return flat_name(path)


def open_branches(node: Any) -> Any:  # noqa: ANN401
    """Return dicts without the keys that nothing is suggested for; lists and tuples whole."""
    if isinstance(node, dict):
        return {key: open_branches(child) for key, child in node.items() if has_unresolved_values(child)}
    if is_container(node):
        return rebuilt(node, {key: open_branches(child) for key, child in children(node)})
    return node


def flat_point(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested or flat configuration by flat names: leaves, and containers that may be options."""
    flat = {flat_name(path): value for path, value in _leaves(config, ())}
    flat.update({flat_name(path): value for path, value in flattened(config).items()})
    for path, value in _inner_containers(config, ()):
        flat.setdefault(flat_name(path), value)
    return flat


def _leaves(node: Any, path: Path) -> list[tuple[Path, Any]]:  # noqa: ANN401
    if not is_container(node) or is_placeholder(node):
        return [(path, node)]
    return [leaf for key, child in children(node) for leaf in _leaves(child, (*path, key))]


def _inner_containers(node: Any, path: Path) -> list[tuple[Path, Any]]:  # noqa: ANN401
    if not is_container(node):
        return []
    own = [(path, node)] if path else []
    return own + [one for key, child in children(node) for one in _inner_containers(child, (*path, key))]
