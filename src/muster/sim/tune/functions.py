"""Test functions of the optimisation literature, as they are usually written; all are minimised. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

BRANIN_MIN = 0.39788735772973816  # at (-pi, 12.275), (pi, 2.275), (9.42478, 2.475)
HARTMANN6_MIN = -3.3223680114155147  # at (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)

_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def branin(x: float, y: float) -> float:
    """(y - 5.1 x^2 / (4 pi^2) + 5 x / pi - 6)^2 + 10 (1 - 1 / (8 pi)) cos x + 10"""
    bend = y - 5.1 * x**2 / (4.0 * math.pi**2) + 5.0 * x / math.pi - 6.0
    return bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * math.cos(x) + 10.0


def hartmann6(x: Sequence[float]) -> float:
    """-sum_i alpha_i exp(-sum_j A_ij (x_j - P_ij)^2)"""
    return -sum(
        alpha * math.exp(-sum(a * (one - p) ** 2 for a, one, p in zip(row, x, place, strict=True)))
        for alpha, row, place in zip(_ALPHA, _A, _P, strict=True)
    )


def rosenbrock(x: Sequence[float]) -> float:
    """sum_i 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2; 0 at (1, ..., 1)"""
    pairs = ((x[i], x[i + 1]) for i in range(len(x) - 1))
    return sum(100.0 * (after - one**2) ** 2 + (1.0 - one) ** 2 for one, after in pairs)


def ackley(x: Sequence[float]) -> float:
    """-20 exp(-0.2 sqrt(mean x^2)) - exp(mean cos(2 pi x)) + 20 + e; 0 at the origin"""
    count = len(x)
    spread = math.sqrt(sum(one**2 for one in x) / count)
    waves = sum(math.cos(2.0 * math.pi * one) for one in x) / count
    return -20.0 * math.exp(-0.2 * spread) - math.exp(waves) + 20.0 + math.e
