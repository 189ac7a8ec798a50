"""PB2's model: a time-varying Gaussian process of how fast the reward grows, and where that promises most.

Parker-Holder et al., "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits".
Pure numbers: inputs have the columns time, reward before, parameters. Needs numpy and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

Array = Any  # numpy's arrays; their types say little here

MOST_POINTS = 1000
_WINDOW_FROM, _WINDOW_STEP = 200, 10  # points
_STARTS = 10
_CLIP = 2.0
_JITTER = 1e-8
# Logarithms: variance, length scale, noise; forgetting (epsilon) as it is.
_BOUNDS = [
    (math.log(0.05), math.log(10.0)),
    (math.log(0.01), math.log(10.0)),
    (math.log(1e-4), 0.0),
    (0.0, 0.5),
]


class Kernel(NamedTuple):
    """variance * exp(-d^2 / lengthscale) * (1 - epsilon) ^ (|dt| / 2), with noise on the diagonal."""

    variance: float
    lengthscale: float
    noise: float
    epsilon: float

    def between(self, one: Array, other: Array) -> Array:
        distance = ((one[:, None, 1:] - other[None, :, 1:]) ** 2).sum(axis=2)
        apart = np.abs(one[:, None, 0] - other[None, :, 0])
        return self.variance * np.exp(-distance / self.lengthscale) * (1.0 - self.epsilon) ** (0.5 * apart)

    def of(self, inputs: Array) -> Array:
        return self.between(inputs, inputs) + (self.noise + _JITTER) * np.eye(len(inputs))


class Posterior:
    """What the process says after some points."""

    def __init__(self, kernel: Kernel, inputs: Array, targets: Array) -> None:
        self._kernel, self._inputs = kernel, inputs
        self._factor = cholesky(kernel.of(inputs), lower=True)
        self._weights = cho_solve((self._factor, True), targets)

    def mean(self, at: Array) -> tuple[float, Array]:
        """And how it changes with each column but the time."""
        near, slopes = self._near(at)
        return float(near @ self._weights), slopes.T @ self._weights

    def variance(self, at: Array) -> tuple[float, Array]:
        """And how it changes with each column but the time."""
        near, slopes = self._near(at)
        explained = cho_solve((self._factor, True), near, check_finite=False)
        return float(max(self._kernel.variance - near @ explained, 0.0)), -2.0 * (slopes.T @ explained)

    def _near(self, at: Array) -> tuple[Array, Array]:
        near = self._kernel.between(at[None, :], self._inputs)[0]
        return near, near[:, None] * (self._inputs[:, 1:] - at[1:]) * (2.0 / self._kernel.lengthscale)


class Scale(NamedTuple):
    """Columns to [0, 1] and back."""

    low: Array
    width: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> Scale:
        width = high - low
        return cls(low, np.where(width > 0, width, 1.0))

    def forth(self, values: Array) -> Array:
        return (values - self.low) / self.width


def best_point(
    points: Sequence[Sequence[float]],
    pending: Sequence[Sequence[float]],
    now: tuple[float, float],
    bounds: Sequence[tuple[float, float]],
    seed: int,
) -> list[float]:
    """The parameters to try next, within `bounds`.

    points: time, reward before, parameters, change of the reward per unit of time; oldest first.
    pending: time, reward before, parameters, of those chosen lately whose change is not known yet.
    now: time and reward of the trial that is copied.
    """
    with _one_thread():
        return _best_point(points, pending, now, bounds, seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower with more, and sums come out differently. Needs threadpoolctl."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        yield
        return
    with threadpool_limits(1):
        yield


def _best_point(
    points: Sequence[Sequence[float]],
    pending: Sequence[Sequence[float]],
    now: tuple[float, float],
    bounds: Sequence[tuple[float, float]],
    seed: int,
) -> list[float]:
    table = np.array(points[-MOST_POINTS:], dtype=float)
    inputs, changes = table[:, :-1], table[:, -1]
    low, high = np.array(bounds, dtype=float).T
    seen = np.vstack([inputs[:, :2], [now]])
    scale = Scale.of(np.concatenate([seen.min(axis=0), low]), np.concatenate([seen.max(axis=0), high]))
    inputs, targets = scale.forth(inputs), standardised(changes)
    kernel = fitted(inputs[-_WINDOW_FROM:], targets[-_WINDOW_FROM:])
    size = window(kernel, inputs, targets)
    inputs, targets = inputs[-size:], targets[-size:]
    mean = Posterior(kernel, inputs, targets)
    spread = mean
    if len(pending):
        more = scale.forth(np.array(pending, dtype=float))
        spread = Posterior(kernel, np.vstack([inputs, more]), np.concatenate([targets, np.zeros(len(more))]))
    fixed = scale.forth(np.concatenate([now, low]))[:2]
    found = _most_promising(mean, spread, fixed, len(low), (len(inputs), seed))
    return [float(value) for value in low + found * (high - low)]


def standardised(changes: Array) -> Array:
    deviation = changes.std()
    return np.clip((changes - changes.mean()) / (deviation if deviation > 0 else 1.0), -_CLIP, _CLIP)


def fitted(inputs: Array, targets: Array) -> Kernel:
    """The kernel under which the targets are most likely."""

    def cost(values: Array) -> float:
        return -float(_likelihoods(_kernel_of(values), inputs, targets)[-1])

    start = np.array([0.0, 0.0, math.log(0.05), 0.05])
    return _kernel_of(minimize(cost, start, method="L-BFGS-B", bounds=_BOUNDS, options={"maxiter": 30}).x)


def window(kernel: Kernel, inputs: Array, targets: Array) -> int:
    """How many of the latest points belong together: the likelihood per point says. Few points all do."""
    total = len(inputs)
    if total < _WINDOW_FROM:
        return total
    likelihoods = _likelihoods(kernel, inputs[::-1], targets[::-1])
    sizes = list(range(_WINDOW_FROM, total + 1, _WINDOW_STEP))
    return max(sizes, key=lambda size: likelihoods[size - 1] / size)


def _likelihoods(kernel: Kernel, inputs: Array, targets: Array) -> Array:
    """The log marginal likelihood of the first 1, 2, ... points: one factorisation holds all of theirs."""
    factor = cholesky(kernel.of(inputs), lower=True)
    whitened = solve_triangular(factor, targets, lower=True)
    per_point = 0.5 * whitened**2 + np.log(np.diag(factor)) + 0.5 * math.log(2 * math.pi)
    return -np.cumsum(per_point)


def _kernel_of(values: Array) -> Kernel:
    variance, lengthscale, noise = (float(value) for value in np.exp(values[:3]))
    return Kernel(variance, lengthscale, noise, float(values[3]))


def _most_promising(
    mean: Posterior, spread: Posterior, fixed: Array, count: int, size_and_seed: tuple[int, int]
) -> Array:
    """Upper confidence bound, climbed from several random places; time and reward are given."""
    size, seed = size_and_seed
    daring = math.sqrt(0.2 + max(0.0, math.log(0.4 * size)))

    def cost(parameters: Array) -> tuple[float, Array]:
        at = np.concatenate([fixed, parameters])
        (height, slope), (width, change) = mean.mean(at), spread.variance(at)
        return -(height + daring * width), -(slope + daring * change)[1:]

    starts = np.random.default_rng(seed).uniform(size=(_STARTS, count))
    limits = [(0.0, 1.0)] * count
    ends = [minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits) for start in starts]
    best = min(ends, key=lambda end: float(end.fun))
    return np.clip(best.x, 0.0, 1.0)
