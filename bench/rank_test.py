"""Compare two samples by the Mann-Whitney U test, two-sided; a few lines, so no scipy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Ranks(NamedTuple):
    """Has the `chance` that a value of the first is smaller than one of the second, ties half."""

    chance: float
    p: float  # of a difference at least as large, in either direction, if there is none


def compared(one: Sequence[float], other: Sequence[float]) -> Ranks:
    """Compute exactly without equal values; else by the normal approximation, corrected for ties."""
    pairs = len(one) * len(other)
    wins = sum((mine < theirs) + 0.5 * (mine == theirs) for mine in one for theirs in other)
    away = abs(wins - pairs / 2)
    ties = [count for count in Counter((*one, *other)).values() if count > 1]
    p = _approximate(away, len(one), len(other), ties) if ties else _exact(away, len(one), len(other))
    return Ranks(wins / pairs, min(1.0, p))


def _exact(away: float, first: int, second: int) -> float:
    ways = _ways(first, second)
    middle = first * second / 2
    far = sum(count for wins, count in enumerate(ways) if abs(wins - middle) >= away)
    return far / math.comb(first + second, first)


def _ways(first: int, second: int) -> list[int]:
    """Return how many orders give 0, 1, 2, ... wins: the coefficients of a Gaussian binomial."""
    ways = [1] + [0] * (first * second)
    for number in range(1, first + 1):
        for wins in range(first * second, second + number - 1, -1):  # times 1 - x^(second + number)
            ways[wins] -= ways[wins - second - number]
        for wins in range(number, first * second + 1):  # divided by 1 - x^number
            ways[wins] += ways[wins - number]
    return ways


def _approximate(away: float, first: int, second: int, ties: Sequence[int]) -> float:
    total = first + second
    tied = sum(count**3 - count for count in ties) / (total * (total - 1))
    deviation = math.sqrt(first * second / 12 * (total + 1 - tied))
    if deviation < 1e-12:
        return 1.0  # all are equal
    return math.erfc(max(0.0, away - 0.5) / deviation / math.sqrt(2))


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test, exact also with ties; zeros are left out."""
    sizes = sorted(abs(one) for one in differences if one)
    # Twice the mean rank of equal sizes is a whole number.
    ranks = {size: 2 * sizes.index(size) + sizes.count(size) + 1 for size in sizes}
    ways = Counter({0: 1})
    for size in sizes:
        more = Counter({total + ranks[size]: count for total, count in ways.items()})
        ways = ways + more
    middle = sum(ranks[size] for size in sizes) / 2
    away = abs(sum(ranks[abs(one)] for one in differences if one > 0) - middle)
    far = sum(count for total, count in ways.items() if abs(total - middle) >= away)
    return float(far / 2 ** len(sizes))
