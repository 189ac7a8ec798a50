"""Define eight noiseless functions of BBOB from their public definitions, with the optimum at 0.

The instance seeds optimum, rotations and peaks; numbers differ from COCO's own instances.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], float]


def rotation(rng: np.random.Generator, size: int) -> np.ndarray:
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def oscillate(x: np.ndarray) -> np.ndarray:
    size = np.log(np.abs(np.where(x == 0, 1.0, x)))
    slow, fast = np.where(x > 0, 10.0, 5.5), np.where(x > 0, 7.9, 3.1)
    return np.sign(x) * np.exp(size + 0.049 * (np.sin(slow * size) + np.sin(fast * size)))


def skew(x: np.ndarray, beta: float) -> np.ndarray:
    places = np.arange(len(x)) / max(1, len(x) - 1)
    return np.where(x > 0, np.maximum(x, 0) ** (1 + beta * places * np.sqrt(np.maximum(x, 0))), x)


def stretch(alpha: float, size: int) -> np.ndarray:
    return alpha ** (0.5 * np.arange(size) / max(1, size - 1))


def penalty(x: np.ndarray) -> float:
    return float((np.maximum(0, np.abs(x) - 5) ** 2).sum())


def rastrigin(z: np.ndarray) -> float:
    return float(10 * (len(z) - np.cos(2 * np.pi * z).sum()) + z @ z)


def sphere(rng: np.random.Generator, size: int) -> Function:
    best = rng.uniform(-4, 4, size)
    return lambda x: float(((x - best) ** 2).sum())


def separable_rastrigin(rng: np.random.Generator, size: int) -> Function:
    best, scale = rng.uniform(-4, 4, size), stretch(10, size)
    return lambda x: rastrigin(scale * skew(oscillate(x - best), 0.2))


def attractive_sector(rng: np.random.Generator, size: int) -> Function:
    best = rng.uniform(-4, 4, size)
    turn = rotation(rng, size) @ np.diag(stretch(10, size)) @ rotation(rng, size)

    def value(x: np.ndarray) -> float:
        z = turn @ (x - best)
        z = np.where(z * best > 0, 100.0, 1.0) * z
        return float(oscillate(np.array([z @ z]))[0] ** 0.9)

    return value


def rosenbrock(rng: np.random.Generator, size: int) -> Function:
    best, scale = rng.uniform(-3, 3, size), max(1.0, np.sqrt(size) / 8)

    def value(x: np.ndarray) -> float:
        z = scale * (x - best) + 1
        return float((100 * (z[:-1] ** 2 - z[1:]) ** 2 + (z[:-1] - 1) ** 2).sum())

    return value


def rotated_ellipsoid(rng: np.random.Generator, size: int) -> Function:
    best, turn = rng.uniform(-4, 4, size), rotation(rng, size)
    weights = 10 ** (6 * np.arange(size) / max(1, size - 1))
    return lambda x: float(weights @ oscillate(turn @ (x - best)) ** 2)


def rotated_rastrigin(rng: np.random.Generator, size: int) -> Function:
    best, turn, other = rng.uniform(-4, 4, size), rotation(rng, size), rotation(rng, size)
    outer = turn @ np.diag(stretch(10, size)) @ other
    return lambda x: rastrigin(outer @ skew(oscillate(turn @ (x - best)), 0.2)) + penalty(x)


def schwefel(rng: np.random.Generator, size: int) -> Function:
    signs = rng.choice([-1.0, 1.0], size)
    best = 4.2096874633 / 2
    scale = stretch(10, size)

    def value(x: np.ndarray) -> float:
        moved = 2 * signs * x
        moved[1:] += 0.25 * (moved[:-1] - 2 * best)
        z = 100 * (scale * (moved - 2 * best) + 2 * best)
        wave = float((z * np.sin(np.sqrt(np.abs(z)))).sum())
        return -wave / (100 * size) + 4.189828872724339 + 100 * penalty(z / 100)

    return value


def gallagher(rng: np.random.Generator, size: int, peaks: int = 101) -> Function:
    centers = rng.uniform(-5, 5, (peaks, size))
    centers[0] = rng.uniform(-4, 4, size)
    heights = np.concatenate([[10.0], 1.1 + 8 * np.arange(peaks - 1) / (peaks - 2)])
    alphas = np.concatenate([[1000.0], 1000 ** (2 * rng.permutation(peaks - 1) / (peaks - 2))])
    turn = rotation(rng, size)
    shapes = np.array([rng.permutation(stretch(alpha, size) ** 2) / alpha**0.25 for alpha in alphas])

    def value(x: np.ndarray) -> float:
        away = (x - centers) @ turn.T
        highest = (heights * np.exp(-0.5 / size * (shapes * away**2).sum(axis=1))).max()
        return float(oscillate(np.array([10 - highest]))[0] ** 2) + penalty(x)

    return value


FUNCTIONS: dict[str, Callable[[np.random.Generator, int], Function]] = {
    "f1": sphere,
    "f3": separable_rastrigin,
    "f6": attractive_sector,
    "f8": rosenbrock,
    "f10": rotated_ellipsoid,
    "f15": rotated_rastrigin,
    "f20": schwefel,
    "f21": gallagher,
}
