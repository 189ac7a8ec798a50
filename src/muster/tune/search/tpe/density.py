"""Fit the two densities of a group of coordinates, draws candidates from the good one, and scores points.

A density is a mixture of products: one kernel per trial and a uniform prior kernel. Numbers have normal
kernels truncated to [0, 1], as wide as the larger gap to a neighbor; choices copy the option of the kernel
or draw one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from muster.tune.search.tpe.coordinates import Coordinates, Floats, Group, Places
from muster.tune.search.tpe.table import GONE, Rows, SearchTable

REDRAWN = 0.4  # how often a choice is not copied from its kernel
_FAR = 4.0  # standard deviations beyond which a tail is taken as empty
_LEAST_LOG = -600.0  # exp below is denormal, and slow
_NOTHING = -50.0  # relative to the largest, in logarithms: less than rounding, also of a million kernels
_FEW = 0.25  # share of kernels above that, up to which the others are left out
_BLOCK = 60  # dimensions whose widths may be multiplied: 0.01 ** 60 is not denormal
_ONE_THREAD = 2**18  # multiplications up to which BLAS starts no threads, which wait for busy processors
_INSERTED = 8  # more new trials at once are sorted instead


class Mixture:
    """One density over a group; kernels are columns, and the prior is not among them.

    Args:
        u: Centers of the kernels, by number.
        c: Options of the kernels, by choice.
        width: Standard deviations, as `u`.
        factors: What `kernel_factors` returns for these kernels; the last row becomes this density's.
        weights: Of the kernels; the prior has weight 1.
        model: Of the group.
    """

    def __init__(
        self, u: Floats, c: Places, width: Floats, factors: Floats, weights: Floats, model: GroupModel
    ) -> None:
        self.u, self.c, self.width, self.weights, self.sizes = u, c, width, weights, model.sizes
        log_total = math.log(weights.sum() + 1.0)
        self._log_prior = -log_total - model.log_options
        self._factors = factors
        factors[-1] += np.log(weights) + (model.log_redrawn - self._log_prior - log_total)

    def log_density(self, u: Floats, c: Places) -> Floats:
        """Return the logarithm of the density at points, which are columns.

        All kernels at all points are one matrix product, in logarithms relative to the prior. Where most of
        them are nothing next to the largest, they are left out before the exponential, which would be most of
        the cost.
        """
        count = u.shape[1]
        powers = np.empty((2 * len(u) + 1, count))
        powers[: len(u)], powers[len(u) : -1], powers[-1] = -0.5 * u * u, u, 1.0
        terms = np.empty((count, self._factors.shape[1]))
        width = max(1, _ONE_THREAD // powers.size)
        for start in range(0, terms.shape[1], width):
            part = slice(start, start + width)
            np.matmul(powers.T, self._factors[:, part], out=terms[:, part])
        for options, own, size in zip(c, self.c, self.sizes, strict=True):
            terms += math.log((1 - REDRAWN) * size / REDRAWN + 1) * (options[:, None] == own)
        most = np.maximum.reduce(terms, axis=1, initial=0.0)  # or the prior's
        terms -= most[:, None]
        is_kept = terms > _NOTHING
        if np.count_nonzero(is_kept) > _FEW * terms.size:
            np.exp(np.maximum(terms, _LEAST_LOG, out=terms), out=terms)
            sums = np.add.reduce(terms, axis=1)
        else:
            kept = places_of(is_kept)
            points = kept // max(1, terms.shape[1])
            sums = np.bincount(points, weights=np.exp(terms.ravel()[kept]), minlength=count)
        density: Floats = self._log_prior + most + np.log(sums + np.exp(np.maximum(-most, _LEAST_LOG)))
        return density

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Floats, Places]:
        """Return points as columns: a kernel by weight, then every coordinate from that kernel."""
        edges = self.weights.cumsum()
        total = (edges[-1] if len(edges) else 0.0) + 1.0
        kernels = edges.searchsorted(rng.random(count) * total, side="right")
        is_prior = kernels == len(edges)
        u, c = rng.random((len(self.u), count)), rng.random((len(self.c), count))
        options = (c * self.sizes[:, None]).astype(np.int32)
        is_copied = (rng.random(c.shape) >= REDRAWN) & ~is_prior
        if len(edges):
            kernels[is_prior] = 0
            options = np.where(is_copied, self.c[:, kernels], options)
            center, width = self.u.take(kernels, axis=1), self.width.take(kernels, axis=1)
            normal = center + width * rng.standard_normal(u.shape)
            places = places_of((normal < 0) | (normal > 1))
            while len(places):
                again = center.take(places) + width.take(places) * rng.standard_normal(len(places))
                normal.put(places, again)
                places = places[(again < 0) | (again > 1)]
            u = np.where(is_prior, u, normal)
        return u, options


class GroupModel:
    """Fits the densities of one group to the trials in which it is active.

    It keeps those trials sorted by each number, because sorting is most of the cost of a fit.
    """

    def __init__(self, coordinates: Coordinates, group: Group) -> None:
        self.group = group
        self._bins = coordinates.bins[group.numbers, None]
        self._scales = [coordinates.scales[index] for index in group.numbers]
        self.sizes = coordinates.sizes[group.choices]
        self.log_options = float(np.log(self.sizes).sum())
        self.log_redrawn = float(np.log(REDRAWN / self.sizes).sum())
        self._numbers = np.array(group.numbers, dtype=np.intp)[:, None]
        self._choices = np.array(group.choices, dtype=np.intp)[:, None]
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
            choice, option = self.group.branch
            chosen = self._rows.searchsorted(good[table.c[choice, good] == option])
        is_other[chosen] = False
        count = len(chosen)
        columns = np.concatenate([chosen, places_of(is_other)])
        u, c = self._u.take(columns, axis=1), self._c.take(columns, axis=1)
        position = is_other.cumsum() - 1
        others = position.take(self._order[is_other.take(self._order)]).reshape(len(u), len(columns) - count)
        width = np.empty_like(u)
        width[:, :count] = self._widths(u[:, :count], u[:, :count].argsort(axis=1, kind="stable"))
        width[:, count:] = self._widths(u[:, count:], others)
        factors = kernel_factors(u, width)

        def mixture(part: slice, weights: Floats) -> Mixture:
            return Mixture(u[:, part], c[:, part], width[:, part], factors[:, part], weights, self)

        ones = np.ones(others.shape[1])
        return mixture(slice(count), rank_weights(count)), mixture(slice(count, None), ones)

    def _widths(self, u: Floats, by_value: Rows) -> Floats:
        """Return the larger gap to a neighbor of each kernel; bounds are not neighbors."""
        count = u.shape[1]
        if count < 2 or not len(u):
            return np.maximum(u, 1 - u)
        places = by_value + self._dimensions * count  # in `u`, row by row
        ordered = u.take(places)
        gaps = ordered[:, 1:] - ordered[:, :-1]
        width = np.empty(u.shape)
        ordered[:, 0], ordered[:, -1] = gaps[:, 0], gaps[:, -1]
        np.maximum(gaps[:, 1:], gaps[:, :-1], out=ordered[:, 1:-1])
        floor = np.maximum(1 / min(100, count + 2), self._bins)
        width.ravel()[places] = np.minimum(np.maximum(ordered, floor), 1.0)
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
        self._u = np.concatenate([self._u, table.u[self._numbers, fresh]], axis=1)
        self._c = np.concatenate([self._c, table.c[self._choices, fresh]], axis=1)
        self._seen = table.count
        if len(fresh) > _INSERTED:
            self._order = np.argsort(self._u, axis=1, kind="stable")
            return
        for column in range(first, len(self._rows)):
            self._insert(column)

    def _insert(self, column: int) -> None:
        """Insert one trial into the kept order, after equal ones, as a stable sort does."""
        values = self._u[:, : column + 1]
        places = np.count_nonzero(values[:, :column] <= values[:, column:], axis=1)
        order = np.empty(values.shape, dtype=np.intp)
        for old, new, place in zip(self._order, order, places.tolist(), strict=True):
            new[:place], new[place], new[place + 1 :] = old[:place], column, old[place:]
        self._order = order

    def snap(self, u: Floats) -> Floats:
        """Move candidates to the grids of their numbers."""
        for scale, row in zip(self._scales, u, strict=True):
            if scale.step:
                row[:] = scale.snap(row)
        return u


@lru_cache(maxsize=8)
def rank_weights(count: int) -> Floats:
    """Return the weights of so many trials, best first; their mean is 1."""
    if not count:
        return np.empty(0)
    weights: Floats = math.log(count + 0.5) - np.log(np.arange(1.0, count + 1))
    weights /= weights.mean()
    return weights


def places_of(condition: NDArray[np.bool_]) -> Rows:
    """Return the flat places of what is true; `np.flatnonzero` takes twice as long for short arrays."""
    return condition.ravel().nonzero()[0]


def kernel_factors(u: Floats, width: Floats) -> Floats:
    """Return what gives, times powers of points, the logarithms of the kernels, which are columns."""
    factors = np.empty((2 * len(u) + 1, u.shape[1]))
    precision, scaled = factors[: len(u)], factors[len(u) : -1]
    np.divide(1.0, width * width, out=precision)
    np.multiply(u, precision, out=scaled)
    factors[-1] = (
        -0.5 * np.add.reduce(u * scaled, axis=0) - log_mass(u, width) - 0.5 * len(u) * math.log(2 * math.pi)
    )
    return factors


def log_mass(u: Floats, width: Floats) -> Floats:
    """Return the logarithm of the product, over dimensions, of each kernel's width and mass inside [0, 1]."""
    distances = np.empty((2, *u.shape))
    np.divide(u, width, out=distances[0])
    np.divide(1 - u, width, out=distances[1])
    tails = np.zeros(distances.shape)
    near = places_of(distances < _FAR)
    tails.put(near, upper_tail(distances.take(near)))
    mass = width * (1 - tails[0] - tails[1])
    total = np.zeros(u.shape[1])
    for start in range(0, len(mass), _BLOCK):
        total += np.log(np.multiply.reduce(mass[start : start + _BLOCK], axis=0))
    return total


def upper_tail(z: Floats) -> Floats:
    """Return the normal distribution's mass above z >= 0, within 1e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 / math.sqrt(2) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * series * np.exp(-0.5 * z * z)
