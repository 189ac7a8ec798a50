"""Convert a space tree to coordinates: options, and numbers in [0, 1] that the user draws uniformly.

Every coordinate belongs to a group: those outside of options form the root group, those inside one option of
a choice form another. A point has NaN or -1 where a group is inactive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.tune.search.dimensions import Dimension
from muster.tune.search.space_tree import SpaceTree

Floats = NDArray[np.float64]
Places = NDArray[np.int32]
MOST_ENUMERATED = 4096
_EDGE = 1e-9  # of a normal number, whose ends are infinite
_EXACT = 2**53
_LARGEST = math.log(1.7e308)
_COMPARED = ("kind", "low", "high", "is_log", "step", "mean", "sd")  # of a dimension, by a restore


class Point(NamedTuple):
    """Has a value for every coordinate: `u` for the numbers, `c` for the choices."""

    u: Floats
    c: Places

    def key(self) -> bytes:
        """Return what equal points share; encoded values may differ in their last bits."""
        return np.round(self.u, 12).tobytes() + self.c.tobytes()


class Scale:
    """Converts one number to its coordinate and back."""

    def __init__(self, dimension: Dimension) -> None:
        self.step = dimension.step or (1.0 if dimension.kind == "int" else 0.0)
        self._dimension = dimension
        low, high = dimension.low, dimension.high
        if self.step and dimension.kind == "int" and max(abs(low), abs(high)) > _EXACT:
            raise ValueError(
                f"'{dimension.name}' has whole numbers beyond 2**53, which are not exact: use uniform()"
            )
        self._normal = None if dimension.mean is None else NormalDist(dimension.mean, dimension.sd or 1.0)
        margin = self.step / 2 if dimension.mean is None else 0.0
        self.bin = 0.0 if dimension.is_log or not margin else self.step / (high - low + self.step)
        if dimension.is_log and low - margin <= 0:
            margin = 0.0
        self._low, self._high = self._forward(np.array([low - margin, high + margin])).tolist()
        self.count = (high - low) / self.step + 1 if self.step else math.inf

    def _forward(self, values: Floats) -> Floats:
        if self._normal is not None:
            return np.array([self._normal.cdf(value) for value in values.tolist()])
        return np.log(values) if self._dimension.is_log else values

    def encode(self, values: Floats) -> Floats:
        """Return the coordinates of values; halves, so that no range overflows."""
        low, high = self._low / 2, self._high / 2
        encoded: Floats = np.clip((self._forward(values) / 2 - low) / (high - low), 0.0, 1.0)
        return encoded

    def _backward(self, u: Floats) -> Floats:
        places: Floats = self._low * (1 - u) + self._high * u
        if self._normal is not None:
            return np.array([self._normal.inv_cdf(p) for p in np.clip(places, _EDGE, 1 - _EDGE).tolist()])
        if self._dimension.is_log:
            places = np.exp(np.minimum(places, _LARGEST))
        return places

    def decode(self, u: float) -> float:
        """Return the user's number, inside the bounds and on the grid."""
        place = self._low * (1 - u) + self._high * u
        if self._normal is not None:
            place = self._normal.inv_cdf(min(max(place, _EDGE), 1 - _EDGE))
        elif self._dimension.is_log:
            place = math.exp(min(place, _LARGEST))
        return float(self._dimension.decoded(place))

    def snap(self, u: Floats) -> Floats:
        """Return the coordinates of the nearest values on the grid."""
        if not self.step:
            return u
        values = np.rint(self._backward(u) / self.step) * self.step
        return self.encode(np.clip(values, self._dimension.low, self._dimension.high))

    def grid(self) -> Floats:
        """Return the coordinates of all values of a grid."""
        places: Floats = np.arange(round(self.count), dtype=np.float64)
        return self.encode(self._dimension.low + self.step * places)


@dataclass
class Group:
    """Has the coordinates that are active together: indices of numbers and of choices."""

    branch: tuple[int, int] | None  # the choice, by its index, and the option that activates the group
    numbers: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)


class Coordinates:
    """Holds the variables of a tree that have more than one value, in the tree's order."""

    def __init__(self, tree: SpaceTree) -> None:
        self._tree = tree
        variable = tree.variable
        self.number_labels = [label for label, each in variable.items() if each.kind != "choice"]
        self.choice_labels = [label for label, each in variable.items() if each.kind == "choice"]
        self.scales = [Scale(variable[label]) for label in self.number_labels]
        self.sizes = np.array([len(variable[label].options) for label in self.choice_labels], dtype=np.int32)
        self.bins = np.array([scale.bin for scale in self.scales])
        self.groups = self._grouped(list(variable))
        self.fingerprint = [
            [label, *(getattr(each, name) for name in _COMPARED), len(each.options)]
            for label, each in variable.items()
        ]

    def _grouped(self, labels: list[str]) -> list[Group]:
        """Return the groups, each after the one that has its choice; a single option always is active."""
        found: dict[tuple[int, int] | None, Group] = {None: Group(None)}
        for label in labels:
            branch = self._tree.branches[label]
            while branch is not None and branch[0] not in self.choice_labels:
                branch = self._tree.branches[branch[0]]
            key = None if branch is None else (self.choice_labels.index(branch[0]), branch[1])
            group = found.setdefault(key, Group(key))
            if label in self.choice_labels:
                group.choices.append(self.choice_labels.index(label))
            else:
                group.numbers.append(self.number_labels.index(label))
        return list(found.values())

    @cached_property
    def size(self) -> float:
        """Return how many points the space has."""
        by_branch = {group.branch: group for group in self.groups}

        def count(branch: tuple[int, int] | None) -> float:
            group = by_branch.get(branch, Group(branch))
            options = [
                sum(count((index, option)) for option in range(self.sizes[index])) for index in group.choices
            ]
            return math.prod((*(self.scales[index].count for index in group.numbers), *options))

        return count(None)

    def empty_point(self) -> Point:
        return Point(
            np.full(len(self.scales), math.nan), np.full(len(self.choice_labels), -1, dtype=np.int32)
        )

    def is_active(self, group: Group, point: Point) -> bool:
        return group.branch is None or bool(point.c[group.branch[0]] == group.branch[1])

    def place(self, unit: Floats) -> Point:
        """Return the point at given places of a unit cube over all coordinates, numbers first."""
        point, count = self.empty_point(), len(self.scales)
        for group in self.groups:
            if self.is_active(group, point):
                for index in group.numbers:
                    point.u[index] = self.scales[index].snap(unit[index : index + 1])[0]
                for index in group.choices:
                    point.c[index] = min(int(unit[count + index] * self.sizes[index]), self.sizes[index] - 1)
        return point

    def values(self, point: Point) -> dict[str, float]:
        """Return a point by label, as the tree takes it."""
        found: dict[str, float] = {
            label: self.scales[index].decode(float(point.u[index]))
            for index, label in enumerate(self.number_labels)
            if not math.isnan(point.u[index])
        }
        places = zip(self.choice_labels, point.c.tolist(), strict=True)
        return found | {label: place for label, place in places if place >= 0}

    def point(self, values: Mapping[str, float], fill: Point) -> Point:
        """Return values by label as a point; what is missing is as in `fill`, or else in the middle."""
        point = self.empty_point()
        for group in self.groups:
            if not self.is_active(group, point):
                continue
            for index in group.choices:
                point.c[index] = values.get(self.choice_labels[index], max(fill.c[index], 0))
            for index in group.numbers:
                label, scale = self.number_labels[index], self.scales[index]
                middle = 0.5 if math.isnan(fill.u[index]) else float(fill.u[index])
                value = values[label] if label in values else scale.decode(middle)
                point.u[index] = scale.encode(np.array([float(value)]))[0]
        return point

    def every_point(self) -> list[Point]:
        """Return all points of a finite space."""
        found = [self.empty_point()]
        for group in self.groups:
            axes: list[list[float]] = [self.scales[index].grid().tolist() for index in group.numbers]
            axes += [list(range(self.sizes[index])) for index in group.choices]
            extended: list[Point] = []
            for point in found:
                if not self.is_active(group, point):
                    extended.append(point)
                    continue
                for chosen in product(*axes):
                    new = Point(point.u.copy(), point.c.copy())
                    new.u[group.numbers] = chosen[: len(group.numbers)]
                    new.c[group.choices] = chosen[len(group.numbers) :]
                    extended.append(new)
            found = extended
        return found


def kronecker(dimensions: int) -> Floats:
    """Return the steps of an evenly spread sequence in so many dimensions."""
    root: float = 2.0
    for _ in range(30):
        root = (1 + root) ** (1 / (dimensions + 1))
    return root ** -np.arange(1.0, dimensions + 1)
