"""Describe a search space as a tree: domains by label, also those inside the options of choices.

Searchers that support conditional spaces read dimensions from it, and convert values to suggestions and back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from muster.tune.search.check_space import check_space
from muster.tune.search.dimensions import (
    Dimension,
    checked_name,
    dimension_of,
    flat_point,
    open_branches,
    refuse_grid,
)
from muster.tune.search.paths import (
    Path,
    children,
    copied,
    filled,
    flat_name,
    is_container,
    is_equal,
    rebuilt,
)
from muster.tune.search.sample import Categorical, Domain, Function
from muster.tune.search.variant_generator import find_unresolved, has_unresolved_values

logger = logging.getLogger(__name__)

Feature = Literal["int", "choice", "log", "step", "log step", "normal", "branch"]
FEATURES: Collection[Feature] = get_args(Feature)
_OTHERS = 'use search_alg="auto", OptunaSearch or HyperOptSearch'
_KINDS: dict[Feature, str] = {"log": "log-uniform", "normal": "normal"}
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
        features: What the searcher supports besides uniform floats. A missing "step" is dropped with a
            warning, because the values stay inside the bounds; anything else is refused.
    """

    def __init__(
        self,
        owner: str,
        space: Mapping[str, Any],
        *,
        keeps_constants: bool = False,
        features: Collection[Feature] = FEATURES,
    ) -> None:
        self._owner, self._features = owner, features
        check_space(space, "space")
        unresolved = find_unresolved(iter([((), dict(space))]))
        for path, _ in unresolved.grids:
            refuse_grid(owner, self.label("", path))
        for path, function in unresolved.functions.items():
            self._refuse(function, self.label("", path))
        self.all: dict[str, Dimension] = {}
        self.branches: dict[str, Branch | None] = {}  # where each label is, None outside of options
        self.root = dict(space) if keeps_constants else open_branches(dict(space))
        self._collect(self.root, "", None)

    @property
    def variable(self) -> dict[str, Dimension]:
        """Return those with more than one value; the others are filled in by `suggestion`."""
        return {label: one for label, one in self.all.items() if not one.is_single}

    def label(self, parent: str, path: Path) -> str:
        name = checked_name(self._owner, path)
        return f"{parent}/{name}" if parent else name

    def _collect(self, node: Node, label: str, branch: Branch | None) -> None:
        if isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
            refuse_grid(self._owner, label)
        if isinstance(node, Function) or (isinstance(node, dict) and len(node) == 1 and "eval" in node):
            self._refuse(node, label)
        if isinstance(node, Domain):
            self.all[label], self.branches[label] = self._dimension(node, label), branch
        if isinstance(node, Categorical):
            for index, option in enumerate(node.categories):
                if has_unresolved_values(option):
                    self._require("branch", label, f"no domains inside its option {index}: {_OTHERS}")
                    self._collect(option, f"{label}:{index}", (label, index))
        elif is_container(node):
            for key, child in children(node):
                self._collect(child, self.label(label, (key,)), branch)

    def _refuse(self, function: object, label: str) -> None:
        raise ValueError(f"{self._owner} cannot suggest {function!r} at '{label}': use a domain")

    def _dimension(self, domain: Domain, label: str) -> Dimension:
        if isinstance(domain, Categorical):
            if domain.is_grid():
                refuse_grid(self._owner, label)
            self._require("choice", label, "only real numbers: use uniform(), or another searcher")
            return Dimension(label, "choice", options=tuple(domain.categories))
        found = dimension_of(label, domain)
        if found is None or (found.sd is not None and "normal" not in self._features):
            kinds = [kind for feature, kind in _KINDS.items() if feature in self._features]
            raise ValueError(
                f"{self._owner} cannot draw '{label}' from {domain!r}: "
                f"it supports {' and '.join(['uniform', *kinds])} numbers"
            )
        if found.kind == "int":
            self._require("int", label, "only real numbers: use uniform()")
        if found.is_log:
            self._require("log", label, "no log scale: use uniform(), or search the exponent")
        return self._with_step_or_without(found)

    def _require(self, feature: Feature, label: str, fix: str) -> None:
        if feature not in self._features:
            raise ValueError(f"{self._owner} cannot search '{label}': it takes {fix}")

    def _with_step_or_without(self, one: Dimension) -> Dimension:
        needed: Feature = "log step" if one.is_log else "step"
        if one.step is None or needed in self._features:
            return one
        kind = "is log-uniform, for which it" if one.is_log and "step" in self._features else "has a step; it"
        logger.warning("%s: '%s' %s supports no step; %s is dropped", self._owner, one.name, kind, one.step)
        return replace(one, step=None)

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
            return self._decoded(label, values.get(label, self.all[label].low))
        if is_container(node):
            prefix = f"{label}/" if label else ""  # keys were checked before
            return rebuilt(
                node, {key: self._filled(child, f"{prefix}{key}", values) for key, child in children(node)}
            )
        return node

    def _decoded(self, label: str, value: float) -> Any:  # noqa: ANN401
        """Return a number of the searcher's as the user's value."""
        return self.all[label].decoded(value)

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
            self._miss(node, label)
        elif isinstance(node, Categorical):
            self._read_choice(node, value, label, found)
        elif isinstance(node, Domain):
            found[label] = self.all[label].encoded(value)
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

    def _miss(self, domain: Domain, label: str) -> None:
        """Accept a point without a variable that has one value, because `suggestion` fills it in."""
        options = getattr(domain, "categories", ())
        if not self.all[label].is_single or has_unresolved_values(list(options)):
            raise _MissingVariable(f"'{label}' is missing")

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
        found[label] = self.all[label].place(value)


class Dimensions(SpaceTree):
    """Holds the dimensions of a space for a library, which gets only those that are variable."""

    def values(self, point: Mapping[str, Any], *, is_partial: bool = False) -> Values:
        variable = self.variable
        found = super().values(point, is_partial=is_partial)
        return {name: value for name, value in found.items() if name in variable}

    def joined(self, space: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the space with a library's own description of each dimension in place of its domain."""
        domains = find_unresolved(iter([((), dict(space))])).domains
        return dict(filled(dict(space), {path: parts[flat_name(path)] for path in domains}))


class _MissingVariable(ValueError):
    """A point lacks the value of a variable."""


def _child(value: Node, key: Node) -> Node:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING
