"""Describe a search space as a tree: domains by label, also those inside the options of choices.

Searchers that support conditional spaces read dimensions from it, and convert values to suggestions and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.tune.search.check_space import check_space
from muster.tune.search.dimensions import (
    Dimension,
    checked_name,
    dimension_of,
    flat_point,
    open_branches,
    refuse_grid,
)
from muster.tune.search.paths import Path, children, copied, is_container, is_equal, rebuilt
from muster.tune.search.sample import Categorical, Domain, Function
from muster.tune.search.variant_generator import find_unresolved, has_unresolved_values

Node = Any  # of a space: a container, a domain or a constant; or a value in a user's point
Values = dict[str, float]  # numbers and places of options, by label
Branch = tuple[str, int]  # the label of a choice, and the place of one of its options
_MISSING = object()


class SpaceTree:
    """Holds dimensions by label: flat names, below option 1 of the choice `c` with `c:1/`.

    Args:
        owner: The searcher that asks, for its error messages.
        space: A search space with domains.
        keeps_constants: Whether suggestions repeat the constants of the space.
    """

    def __init__(self, owner: str, space: Mapping[str, Any], *, keeps_constants: bool) -> None:
        self._owner = owner
        check_space(space, "space")
        unresolved = find_unresolved(iter([((), dict(space))]))
        for path, _ in unresolved.grids:
            refuse_grid(owner, self.label("", path))
        self.variable: dict[str, Dimension] = {}
        self.branches: dict[str, Branch | None] = {}  # where each label is, None outside of options
        self.root = dict(space) if keeps_constants else open_branches(dict(space))
        self._collect(self.root, "", None)

    def label(self, parent: str, path: Path) -> str:
        name = checked_name(self._owner, path)
        return f"{parent}/{name}" if parent else name

    def _collect(self, node: Node, label: str, branch: Branch | None) -> None:
        if isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
            refuse_grid(self._owner, label)
        if isinstance(node, Function) or (isinstance(node, dict) and len(node) == 1 and "eval" in node):
            raise ValueError(f"{self._owner} cannot suggest {node!r} at '{label}': use a domain")
        if isinstance(node, Domain):
            self.variable[label] = self._dimension(node, label)
            self.branches[label] = branch
        if isinstance(node, Categorical):
            for index, option in enumerate(node.categories):
                if has_unresolved_values(option):
                    self._collect(option, f"{label}:{index}", (label, index))
        elif is_container(node):
            for key, child in children(node):
                self._collect(child, self.label(label, (key,)), branch)

    def _dimension(self, domain: Domain, label: str) -> Dimension:
        if isinstance(domain, Categorical):
            if domain.is_grid():
                refuse_grid(self._owner, label)
            return Dimension(label, (), "choice", options=tuple(domain.categories))
        number = dimension_of(label, (), domain)
        if number is None:
            raise ValueError(
                f"{self._owner} cannot draw '{label}' from {domain!r}: "
                "it supports uniform, log-uniform and normal numbers"
            )
        return number

    def suggestion(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers and places of options, by label, in the shape of the space."""
        return dict(self._filled(self.root, "", values))

    def _filled(self, node: Node, label: str, values: Mapping[str, Any]) -> Node:
        if isinstance(node, Categorical):
            index = int(values.get(label, 0))  # only a single option may be left out
            option = node.categories[index]
            inner = has_unresolved_values(option)
            return self._filled(option, f"{label}:{index}", values) if inner else copied(option)
        if isinstance(node, Domain):
            dimension = self.variable[label]
            return dimension.decoded(values.get(label, dimension.low))
        if is_container(node):
            prefix = f"{label}/" if label else ""  # keys were checked before
            return rebuilt(
                node, {key: self._filled(child, f"{prefix}{key}", values) for key, child in children(node)}
            )
        return node

    def values(self, point: Mapping[str, Any], *, is_partial: bool = False) -> Values:
        """Return a user's point by label.

        Args:
            point: A configuration, nested or flat; what is inside an option is nested.
            is_partial: Whether variables outside of options may be missing.

        Raises:
            ValueError: The point misses a variable, or has a value outside of its domain.
        """
        found: Values = {}
        try:
            self._read(self.root, dict(point), flat_point(point), "", found)
        except _MissingVariable as error:
            if not is_partial:
                raise ValueError(f"{self._owner}: in the point {dict(point)!r}, {error}") from None
        except ValueError as error:
            raise ValueError(f"{self._owner}: in the point {dict(point)!r}, {error}") from None
        if point and not found:
            raise ValueError(f"{self._owner}: the point {dict(point)!r} has no key of the space")
        return found

    def _read(self, node: Node, value: Node, flat: Mapping[str, Any], label: str, found: Values) -> None:
        """Read a point; below a choice, `flat` is empty: there a point must be nested."""
        if isinstance(node, Domain) and label in flat:
            value = flat[label]
        if value is _MISSING and isinstance(node, Domain):
            raise _MissingVariable(f"'{label}' is missing")
        if isinstance(node, Categorical):
            self._read_choice(node, value, label, found)
        elif isinstance(node, Domain):
            found[label] = self.variable[label].encoded(value)
        elif is_container(node):
            missing = None
            for key, child in children(node):
                try:
                    self._read(child, _child(value, key), flat, self.label(label, (key,)), found)
                except _MissingVariable as error:  # a partial point keeps what it has
                    missing = missing or error
            if missing is not None:
                raise missing
        elif not flat and not is_equal(node, value):
            raise ValueError(f"'{label}' is {value!r} and not {node!r}")

    def _read_choice(self, domain: Categorical, value: Node, label: str, found: Values) -> None:
        for index, option in enumerate(domain.categories):
            if not has_unresolved_values(option):
                continue
            inner: Values = {}
            try:
                self._read(option, value, {}, f"{label}:{index}", inner)
            except ValueError:
                continue
            found.update({label: index, **inner})
            return
        found[label] = self.variable[label].place(value)


class _MissingVariable(ValueError):
    """A point lacks the value of a variable."""


def _child(value: Node, key: Node) -> Node:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING
