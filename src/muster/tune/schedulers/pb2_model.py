"""Implement PB2's model: a time-varying Gaussian process of the growth of the reward, and its best point.

Parker-Holder et al., "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits".
Pure numbers: inputs have the columns time, reward before, parameters. Needs numpy and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular  # type: ignore[import-untyped]
from scipy.linalg.blas import dtrsv  # type: ignore[import-untyped]
from scipy.linalg.lapack import dpotri  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

Array = Any  # numpy's arrays; their types add little here

MOST_POINTS = 1000
_WINDOW_FROM, _WINDOW_STEP = 200, 10  # points
_STARTS = 10
_CLIP = 2.0
_JITTER = 1e-8
_LOG_2_PI = math.log(2.0 * math.pi)
# Logarithms: variance, length scale, noise; forgetting (epsilon) as it is.
_BOUNDS = [
    (math.log(0.05), math.log(10.0)),
    (math.log(0.01), math.log(10.0)),
    (math.log(1e-4), 0.0),
    (0.0, 0.5),
]


class Pairs(NamedTuple):
    """Holds the distances between points, on which many kernels are tried."""

    squares: Array  # of the distance in every column but the time
    apart: Array  # in time

    @classmethod
    def of(cls, one: Array, other: Array) -> Pairs:
        squares = cdist(one[:, 1:], other[:, 1:], "sqeuclidean")
        return cls(squares, np.abs(one[:, None, 0] - other[None, :, 0]))


class Kernel(NamedTuple):
    """Variance * exp(-d^2 / lengthscale) * (1 - epsilon) ^ (|dt| / 2), plus diagonal noise."""

    variance: float
    lengthscale: float
    noise: float
    epsilon: float

    def at(self, pairs: Pairs) -> Array:
        fading = 0.5 * math.log1p(-self.epsilon)
        return self.variance * np.exp(pairs.squares * (-1.0 / self.lengthscale) + pairs.apart * fading)

    def between(self, one: Array, other: Array) -> Array:
        return self.at(Pairs.of(one, other))

    def of(self, inputs: Array) -> Array:
        return self.with_noise(self.between(inputs, inputs))

    def with_noise(self, covariance: Array) -> Array:
        noisy = covariance.copy()
        noisy.flat[:: len(noisy) + 1] += self.noise + _JITTER
        return noisy


class Posterior:
    """The process after some points; `pending` ones, without targets, reduce the variance."""

    def __init__(
        self,
        kernel: Kernel,
        inputs: Array,
        targets: Array,
        pending: Array | None = None,
        factor: Array | None = None,  # the Cholesky factor of the inputs' covariance, when it is known
    ) -> None:
        if factor is None:
            factor = cholesky(kernel.of(inputs), lower=True, check_finite=False)
        weights = cho_solve((factor, True), targets, check_finite=False)
        if pending is not None:
            factor = _extended(kernel, factor, inputs, pending)
            inputs, weights = np.vstack([inputs, pending]), np.append(weights, np.zeros(len(pending)))
        self._kernel, self._inputs, self._weights = kernel, inputs, weights
        self._factor = np.asfortranarray(factor)  # or dtrsv would copy it each time

    def mean_and_variance(self, at: Array) -> tuple[tuple[float, Array], tuple[float, Array]]:
        """Return both, each with its derivative by each column but the time."""
        away = self._inputs - at
        squares = np.einsum("ij,ij->i", away[:, 1:], away[:, 1:])
        near = self._kernel.at(Pairs(squares, np.abs(away[:, 0])))
        whitened = dtrsv(self._factor, near, lower=1)
        explained = dtrsv(self._factor, whitened, lower=1, trans=1)
        both = np.column_stack([self._weights, -2.0 * explained])
        rises = (2.0 / self._kernel.lengthscale) * (away[:, 1:].T @ (near[:, None] * both))
        left = max(self._kernel.variance - float(whitened @ whitened), 0.0)
        return (float(near @ self._weights), rises[:, 0]), (left, rises[:, 1])


def _extended(kernel: Kernel, factor: Array, inputs: Array, more: Array) -> Array:
    """Return the Cholesky factor with some points more, at the end."""
    known, total = len(inputs), len(inputs) + len(more)
    beside = solve_triangular(factor, kernel.between(inputs, more), lower=True, check_finite=False)
    whole = np.zeros((total, total), order="F")
    whole[:known, :known] = factor
    whole[known:, :known] = beside.T
    whole[known:, known:] = cholesky(kernel.of(more) - beside.T @ beside, lower=True, check_finite=False)
    return whole


class UnitScale(NamedTuple):
    """Maps columns to [0, 1] and back."""

    low: Array
    width: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> UnitScale:
        width = high - low
        return cls(low, np.where(width > 0, width, 1.0))

    def forth(self, values: Array) -> Array:
        return (values - self.low) / self.width


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: matrices this small are slower with more, and sums differ. Needs threadpoolctl."""
    threads = _threads()
    with nullcontext() if threads is None else threads.limit(limits=1):
        yield


@cache
def _threads() -> Any:  # noqa: ANN401 - a ThreadpoolController; to look for the libraries takes 2 ms
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    return ThreadpoolController()


@_one_thread()
def best_point(
    points: Sequence[Sequence[float]],
    pending: Sequence[Sequence[float]],
    now: tuple[float, float],
    bounds: Sequence[tuple[float, float]],
    seed: int,
) -> list[float]:
    """Return the parameters to try next, within `bounds`.

    points: time, reward before, parameters, change of the reward per unit of time; oldest first.
    pending: time, reward before, parameters, of those chosen lately whose change is not known yet.
    now: time and reward of the trial that is copied.
    """
    table = np.array(points[-MOST_POINTS:], dtype=float)
    inputs, changes = table[:, :-1], table[:, -1]
    low, high = np.array(bounds, dtype=float).T
    seen = np.vstack([inputs[:, :2], [now]])
    scale = UnitScale.of(np.concatenate([seen.min(axis=0), low]), np.concatenate([seen.max(axis=0), high]))
    inputs, targets = scale.forth(inputs)[::-1], standardised(changes)[::-1]  # newest first
    kernel = fitted(inputs[:_WINDOW_FROM], targets[:_WINDOW_FROM])
    factor = cholesky(kernel.of(inputs), lower=True, check_finite=False)
    size = window(factor, targets)
    chosen = scale.forth(np.array(pending, dtype=float)) if len(pending) else None
    process = Posterior(kernel, inputs[:size], targets[:size], chosen, factor[:size, :size])
    fixed = scale.forth(np.concatenate([now, low]))[:2]
    found = _most_promising(process, fixed, len(low), (size, seed))
    return [float(value) for value in low + found * (high - low)]


def standardised(changes: Array) -> Array:
    deviation = changes.std()
    return np.clip((changes - changes.mean()) / (deviation if deviation > 0 else 1.0), -_CLIP, _CLIP)


def fitted(inputs: Array, targets: Array) -> Kernel:
    """Return the kernel under which the targets are most likely."""
    pairs = Pairs.of(inputs, inputs)
    start = np.array([0.0, 0.0, math.log(0.05), 0.05])
    found = minimize(
        unlikeliness, start, (pairs, targets), "L-BFGS-B", jac=True, bounds=_BOUNDS, options={"maxiter": 60}
    )
    return _kernel_of(found.x)


def unlikeliness(values: Array, pairs: Pairs, targets: Array) -> tuple[float, Array]:
    """Return minus the log marginal likelihood, and its derivative by each of `values` (see _BOUNDS)."""
    kernel = _kernel_of(values)
    covariance = kernel.at(pairs)
    factor = cholesky(kernel.with_noise(covariance), lower=True, check_finite=False)
    weights = cho_solve((factor, True), targets, check_finite=False)
    cost = 0.5 * targets @ weights + np.log(factor.diagonal()).sum() + 0.5 * len(targets) * _LOG_2_PI
    lower = dpotri(factor, lower=1)[0]  # with zeros above, as the factor has them
    whole = lower + lower.T
    whole.flat[:: len(whole) + 1] *= 0.5
    slack = whole - np.outer(weights, weights)  # half of it: how the cost changes with each entry
    by_entry = slack * covariance
    by_variance = by_entry.sum()
    by_scale = np.vdot(by_entry, pairs.squares) / kernel.lengthscale
    by_noise = slack.trace() * kernel.noise
    by_epsilon = np.vdot(by_entry, pairs.apart) * (-0.5 / (1.0 - kernel.epsilon))
    return float(cost), 0.5 * np.array([by_variance, by_scale, by_noise, by_epsilon])


def window(factor: Array, targets: Array) -> int:
    """Return how many of the latest points belong together, by the likelihood per point; of few points, all.

    Newest first; one factorisation holds those of all windows.
    """
    total = len(targets)
    if total < _WINDOW_FROM:
        return total
    logs = likelihoods(factor, targets)
    sizes = list(range(_WINDOW_FROM, total + 1, _WINDOW_STEP))
    return max(sizes, key=lambda size: logs[size - 1] / size)


def likelihoods(factor: Array, targets: Array) -> Array:
    """Return the log marginal likelihood of every prefix of the points, by one Cholesky factor."""
    whitened = solve_triangular(factor, targets, lower=True, check_finite=False)
    per_point = 0.5 * whitened**2 + np.log(np.diag(factor)) + 0.5 * _LOG_2_PI
    return -np.cumsum(per_point)


def _kernel_of(values: Array) -> Kernel:
    variance, lengthscale, noise = (float(value) for value in np.exp(values[:3]))
    return Kernel(variance, lengthscale, noise, float(values[3]))


def _most_promising(process: Posterior, fixed: Array, count: int, size_and_seed: tuple[int, int]) -> Array:
    """Maximize the upper confidence bound from several random places; time and reward are given."""
    size, seed = size_and_seed
    daring = math.sqrt(0.2 + max(0.0, math.log(0.4 * size)))

    def cost(parameters: Array) -> tuple[float, Array]:
        (height, slope), (width, change) = process.mean_and_variance(np.concatenate([fixed, parameters]))
        return -(height + daring * width), -(slope + daring * change)[1:]

    starts = np.random.default_rng(seed).uniform(size=(_STARTS, count))
    limits = [(0.0, 1.0)] * count
    ends = [minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits) for start in starts]
    best = min(ends, key=lambda end: float(end.fun))
    return np.clip(best.x, 0.0, 1.0)
