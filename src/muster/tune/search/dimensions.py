"""Describe one variable of a search space, from which every adapter of a search library converts.

A dimension has bounds that are both included, so adapters need not think about them again. Values on the
library's side are numbers; an option of a choice is its place in the list, so that any object can be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.tune.search.paths import (
    Path,
    children,
    flat_name,
    flattened,
    is_container,
    is_equal,
    rebuilt,
)
from muster.tune.search.placeholders import is_placeholder
from muster.tune.search.sample import (
    Domain,
    Float,
    Integer,
    LogUniform,
    Normal,
    Quantized,
    Uniform,
    grid_bounds,
)
from muster.tune.search.variant_generator import has_unresolved_values


@dataclass(frozen=True)
class Dimension:
    """One variable of a space. `mean` and `sd` are set when it is normally distributed."""

    name: str
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


def dimension_of(name: str, domain: Domain) -> Dimension | None:
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
        return Dimension(name, "float", domain.lower, domain.upper, is_log, q, mean, sd)
    # Without a step, the upper bound of an integer is excluded; with one it is included.
    step = None if q == 1 else q
    low, high = float(domain.lower), float(domain.upper - 1)
    if step is not None:
        first, last = grid_bounds(domain.lower, domain.upper, step)
        low, high = first * step, last * step
    if low > high:
        raise ValueError(f"'{name}', {domain!r}, has no value: its upper bound must be above the lower one")
    return Dimension(name, "int", low, high, is_log, step, mean, sd)


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
