"""Fits the two densities of a group of coordinates, draws candidates from the good one, and scores points.

A density is a mixture of products: one kernel per trial and a uniform prior kernel. Numbers have normal
kernels truncated to [0, 1], as wide as the larger gap to a neighbor; choices copy the option of the kernel
or draw one.
"""

from __future__ import annotations

import math

import numpy as np

from muster.tune.search.tpe.coordinates import Coordinates, Floats, Group, Places
from muster.tune.search.tpe.table import GONE, Rows, SearchTable

REDRAWN = 0.4  # how often a choice is not copied from its kernel
_FAR = 4.0  # standard deviations beyond which a tail is taken as empty
_LEAST_LOG = -600.0  # exp below is denormal, and slow
_NOTHING = -50.0  # relative to the prior, in logarithms: less than rounding, also of a million kernels
_BLOCK = 60  # dimensions whose widths may be multiplied: 0.01 ** 60 is not denormal
_ONE_THREAD = 2**18  # multiplications up to which BLAS starts no threads, which wait for busy processors
_INSERTED = 8  # more new trials at once are sorted instead


class Mixture:
    """A Mixture is one density over a group; kernels are columns, and the prior is not among them.

    Args:
        u: Centers of the kernels, by number.
        c: Options of the kernels, by choice.
        width: Standard deviations, as `u`.
        weights: Of the kernels; the prior has weight 1.
        sizes: How many options each choice has.
    """

    def __init__(self, u: Floats, c: Places, width: Floats, weights: Floats, sizes: Places) -> None:
        self.u, self.c, self.width, self.weights, self.sizes = u, c, width, weights, sizes
        total = weights.sum() + 1.0
        self._log_prior = -math.log(total) - float(np.log(sizes).sum())
        self._factors = np.empty((2 * len(u) + 1, len(weights)))
        precision, scaled = self._factors[: len(u)], self._factors[len(u) : -1]
        np.divide(1.0, width * width, out=precision)
        np.multiply(u, precision, out=scaled)
        self._factors[-1] = np.log(weights) - 0.5 * (u * scaled).sum(axis=0) - log_mass(u, width)
        self._factors[-1] += (
            float(np.log(REDRAWN / sizes).sum() - self._log_prior)
            - math.log(total)
            - 0.5 * len(u) * math.log(2 * math.pi)
        )

    def log_density(self, u: Floats, c: Places) -> Floats:
        """Return the logarithm of the density at points, which are columns.

        All kernels at all points are one matrix product, in logarithms relative to the prior. Kernels that
        are nothing next to the prior are left out before the exponential, which would be most of the cost.
        """
        count = u.shape[1]
        powers = np.ones((2 * len(u) + 1, count))
        powers[: len(u)], powers[len(u) : -1] = -0.5 * u * u, u
        terms = np.empty((count, self._factors.shape[1]))
        width = max(1, _ONE_THREAD // powers.size)
        for start in range(0, terms.shape[1], width):
            part = slice(start, start + width)
            np.matmul(powers.T, self._factors[:, part], out=terms[:, part])
        for options, own, size in zip(c, self.c, self.sizes, strict=True):
            terms += math.log((1 - REDRAWN) * size / REDRAWN + 1) * (options[:, None] == own)
        kept = np.flatnonzero(terms > _NOTHING)
        points, values = kept // max(1, terms.shape[1]), terms.ravel()[kept]
        most = np.zeros(count)  # the prior's
        np.maximum.at(most, points, values)
        values = np.exp(np.maximum(values - most[points], _LEAST_LOG))
        sums = np.bincount(points, weights=values, minlength=count) + np.exp(np.maximum(-most, _LEAST_LOG))
        return self._log_prior + most + np.log(sums)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Floats, Places]:
        """Return points as columns: a kernel by weight, then every coordinate from that kernel."""
        edges = np.cumsum(self.weights)
        total = (edges[-1] if len(edges) else 0.0) + 1.0
        kernels = np.searchsorted(edges, rng.random(count) * total, side="right")
        is_prior = kernels == len(edges)
        u, c = rng.random((len(self.u), count)), rng.random((len(self.c), count))
        options = (c * self.sizes[:, None]).astype(np.int32)
        is_copied = (rng.random(c.shape) >= REDRAWN) & ~is_prior
        if len(edges):
            columns = np.where(is_prior, 0, kernels)
            options = np.where(is_copied, self.c[:, columns], options)
            center, width = self.u[:, columns], self.width[:, columns]
            normal = center + width * rng.standard_normal(u.shape)
            while (outside := (normal < 0) | (normal > 1)).any():
                normal[outside] = center[outside] + width[outside] * rng.standard_normal(
                    np.count_nonzero(outside)
                )
            u = np.where(is_prior, u, normal)
        return u, options


class GroupModel:
    """A GroupModel fits the densities of one group to the trials in which it is active.

    It keeps those trials sorted by each number, because sorting is most of the cost of a fit.
    """

    def __init__(self, coordinates: Coordinates, group: Group) -> None:
        self.group = group
        self._bins = coordinates.bins[group.numbers, None]
        self._scales = [coordinates.scales[index] for index in group.numbers]
        self._sizes = coordinates.sizes[group.choices]
        self._seen = 0  # trials of the table
        self._rows: Rows = np.empty(0, dtype=np.intp)
        self._u: Floats = np.empty((len(group.numbers), 0))
        self._c: Places = np.empty((len(group.choices), 0), dtype=np.int32)
        self._order: Rows = np.empty((len(group.numbers), 0), dtype=np.intp)  # of the columns of `u`
        self._dimensions = np.arange(len(group.numbers))[:, None]

    def fit(self, table: SearchTable, good: Rows) -> tuple[Mixture, Mixture]:
        """Return the densities of the good trials, given best first, and of all others."""
        self._update(table)
        is_other = table.status[self._rows] != GONE
        chosen = good  # the root group has all trials
        if self.group.branch is not None:
            chosen = np.searchsorted(self._rows, good[np.isin(good, self._rows)])
        is_other[chosen] = False
        count = len(chosen)
        weights = math.log(count + 0.5) - np.log(np.arange(1.0, count + 1)) if count else np.empty(0)
        if count:
            weights /= weights.mean()
        u = np.ascontiguousarray(self._u[:, chosen])
        by_value = np.argsort(u, axis=1, kind="stable")
        fitted = Mixture(u, self._c[:, chosen], self._widths(u, by_value), weights, self._sizes)
        return fitted, self._others(is_other)

    def _others(self, is_other: np.typing.NDArray[np.bool_]) -> Mixture:
        u = self._u[:, is_other]
        count = u.shape[1]
        position = np.cumsum(is_other) - 1
        by_value = position[self._order[is_other[self._order]]].reshape(len(u), count)
        return Mixture(u, self._c[:, is_other], self._widths(u, by_value), np.ones(count), self._sizes)

    def _widths(self, u: Floats, by_value: Rows) -> Floats:
        """Return the larger gap to a neighbor of each kernel; bounds are not neighbors."""
        count = u.shape[1]
        if count < 2 or not len(u):
            return np.maximum(u, 1 - u)
        ordered = u[self._dimensions, by_value]
        gaps = ordered[:, 1:] - ordered[:, :-1]
        width = np.empty_like(u)
        ordered[:, 0], ordered[:, -1] = gaps[:, 0], gaps[:, -1]
        np.maximum(gaps[:, 1:], gaps[:, :-1], out=ordered[:, 1:-1])
        floor = np.maximum(1 / min(100, count + 2), self._bins)
        width[self._dimensions, by_value] = np.clip(ordered, floor, 1.0)
        return width

    def _update(self, table: SearchTable) -> None:
        """Take the trials that are new in the table."""
        if self._seen == table.count:
            return
        fresh = np.arange(self._seen, table.count)
        if self.group.branch is not None:
            choice, option = self.group.branch
            fresh = fresh[table.c[choice, self._seen : table.count] == option]
        first = len(self._rows)
        self._rows = np.concatenate([self._rows, fresh])
        self._u = np.concatenate([self._u, table.u[:, fresh][self.group.numbers]], axis=1)
        self._c = np.concatenate([self._c, table.c[:, fresh][self.group.choices]], axis=1)
        self._seen = table.count
        if len(fresh) > _INSERTED:
            self._order = np.argsort(self._u, axis=1, kind="stable")
            return
        for column in range(first, len(self._rows)):
            self._insert(column)

    def _insert(self, column: int) -> None:
        """Insert one trial into the kept order, after equal ones, as a stable sort does."""
        order = np.empty((len(self._u), column + 1), dtype=np.intp)
        for dimension, (old, new) in enumerate(zip(self._order, order, strict=True)):
            values = self._u[dimension, : column + 1]
            place = np.searchsorted(values[:column], values[column], side="right", sorter=old)
            new[:place], new[place], new[place + 1 :] = old[:place], column, old[place:]
        self._order = order

    def snap(self, u: Floats) -> Floats:
        """Move candidates to the grids of their numbers."""
        for scale, row in zip(self._scales, u, strict=True):
            if scale.step:
                row[:] = scale.snap(row)
        return u


def log_mass(u: Floats, width: Floats) -> Floats:
    """Return the logarithm of the product, over dimensions, of each kernel's width and mass inside [0, 1]."""
    mass = width.copy()
    for distance in (u, 1 - u):
        place = np.nonzero(distance < _FAR * width)
        near = width[place]
        mass[place] -= near * upper_tail(distance[place] / near)
    total = np.zeros(u.shape[1])
    for start in range(0, len(mass), _BLOCK):
        total += np.log(np.multiply.reduce(mass[start : start + _BLOCK], axis=0))
    return total


def upper_tail(z: Floats) -> Floats:
    """Return the normal distribution's mass above z >= 0, within 1e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 / math.sqrt(2) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * series * np.exp(-0.5 * z * z)
