"""A search space as a hyperopt expression, with domains inside of options too, and the way back. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from muster.tune.search.dimensions import Dimension, dimension_of, flat_point, open_branches
from muster.tune.search.domains import Categorical, Domain, Function
from muster.tune.search.paths import Path, children, copied, is_container, rebuilt
from muster.tune.search.unresolved import find_unresolved, has_unresolved_values

OWNER = "HyperOptSearch"
Values = dict[str, float]


class HyperoptSpace:
    """Labels are flat names; those of a domain inside option 1 of the choice `c` begin with `c:1/`.

    Objects and constants never reach hyperopt: it sees places of options.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        unresolved = find_unresolved(iter([((), dict(space))]))
        for path, _ in unresolved.grids:
            _refuse_grid(_label("", path))
        self.variable: dict[str, Dimension] = {}  # by label
        self._root = open_branches(dict(space))
        self.expression = self._expressed(self._root, "")

    def _expressed(self, node: Any, label: str) -> Any:  # noqa: ANN401
        if isinstance(node, Categorical):
            return self._choice(node, label)
        if isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
            _refuse_grid(label)
        if isinstance(node, Function) or (isinstance(node, dict) and len(node) == 1 and "eval" in node):
            raise ValueError(f"{OWNER} cannot suggest {node!r} at '{label}': use a domain")
        if isinstance(node, Domain):
            return self._number(node, label)
        if is_container(node):
            parts = {key: self._expressed(child, _label(label, (key,))) for key, child in children(node)}
            return {str(key): part for key, part in parts.items() if part is not None}
        return None

    def _choice(self, domain: Categorical, label: str) -> Any:  # noqa: ANN401
        from hyperopt import hp

        if domain.is_grid():
            _refuse_grid(label)
        self.variable[label] = Dimension(label, (), "choice", options=tuple(domain.categories))
        options = [
            self._expressed(option, f"{label}:{index}") if has_unresolved_values(option) else index
            for index, option in enumerate(domain.categories)
        ]
        return hp.choice(label, options)

    def _number(self, domain: Domain, label: str) -> Any:  # noqa: ANN401
        found = dimension_of(label, (), domain)
        if found is None:
            raise ValueError(
                f"{OWNER} cannot draw '{label}' from {domain!r}: "
                "it knows uniform, log-uniform and normal numbers"
            )
        self.variable[label] = found
        return hyperopt_number(found)

    def suggestion(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperopt's values by label in the shape of the space, without the constants outside of choices."""
        return dict(self._filled(self._root, "", values))

    def _filled(self, node: Any, label: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
        if isinstance(node, Categorical):
            index = int(values[label])
            option = node.categories[index]
            inner = has_unresolved_values(option)
            return self._filled(option, f"{label}:{index}", values) if inner else copied(option)
        if isinstance(node, Domain):
            return self.variable[label].decoded(values[label])
        if is_container(node):
            return rebuilt(
                node,
                {key: self._filled(child, _label(label, (key,)), values) for key, child in children(node)},
            )
        return node

    def values(self, point: Mapping[str, Any]) -> Values:
        """A user's point by label; ValueError when it misses a variable or has a value outside."""
        found: Values = {}
        try:
            self._read(self._root, dict(point), flat_point(point), "", found)
        except ValueError as error:
            raise ValueError(f"{OWNER}: in the point {dict(point)!r}, {error}") from None
        return found

    def _read(self, node: Any, value: Any, flat: Mapping[str, Any], label: str, found: Values) -> None:  # noqa: ANN401
        """Below a choice, `flat` is empty: there a point must be nested."""
        if isinstance(node, Domain) and label in flat:
            value = flat[label]
        if value is _MISSING and isinstance(node, Domain):
            raise ValueError(f"'{label}' is missing")
        if isinstance(node, Categorical):
            self._read_choice(node, value, label, found)
        elif isinstance(node, Domain):
            found[label] = self.variable[label].encoded(value)
        elif is_container(node):
            for key, child in children(node):
                self._read(child, _child(value, key), flat, _label(label, (key,)), found)
        elif not flat and node != value:
            raise ValueError(f"'{label}' is {value!r} and not {node!r}")

    def _read_choice(self, domain: Categorical, value: Any, label: str, found: Values) -> None:  # noqa: ANN401
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


_MISSING = object()


def _child(value: Any, key: Any) -> Any:  # noqa: ANN401
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _label(parent: str, path: Path) -> str:
    for part in path:
        if isinstance(part, str) and "/" in part:
            raise ValueError(f"{OWNER} joins nested keys with '/', so the key {part!r} must not hold one")
    return "/".join(([parent] if parent else []) + [str(part) for part in path])


def _refuse_grid(label: str) -> None:
    raise ValueError(
        f"{OWNER} cannot take the grid_search at '{label}': "
        "use choice(), or run without a searcher to go through the grid"
    )


def hyperopt_number(one: Dimension) -> Any:  # noqa: ANN401 - a hyperopt expression
    from hyperopt import hp

    step = one.step or (1 if one.kind == "int" else None)
    if one.mean is not None:
        return hp.qnormal(one.name, one.mean, one.sd, step) if step else hp.normal(one.name, one.mean, one.sd)
    if one.is_log:
        low, high = math.log(one.low), math.log(one.high)
        return hp.qloguniform(one.name, low, high, step) if step else hp.loguniform(one.name, low, high)
    if one.kind == "int" and one.step is None:
        return hp.randint(one.name, int(one.low), int(one.high) + 1)
    return hp.quniform(one.name, one.low, one.high, step) if step else hp.uniform(one.name, one.low, one.high)
