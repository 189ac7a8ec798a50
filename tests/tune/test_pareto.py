from __future__ import annotations

import random

import pytest

from muster.tune.pareto import fronts


def peeled(rows):
    """Returns fronts by the definition: remove what nothing dominates, again and again."""

    def dominates(one, other):
        return one != other and all(a >= b for a, b in zip(one, other, strict=True))

    found = [-1] * len(rows)
    front = 0
    while -1 in found:
        rest = [place for place, at in enumerate(found) if at == -1]
        for place in rest:
            if not any(dominates(rows[other], rows[place]) for other in rest):
                found[place] = front + len(rows)  # marked, not yet removed
        found = [at - len(rows) if at >= len(rows) else at for at in found]
        front += 1
    return found


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_fronts_are_those_that_peeling_finds(objectives):
    stream = random.Random(objectives)
    pool = [-0.0, 0.0, 1.0, 2.0, 3.5, float("inf"), float("-inf"), 1e308]
    for _ in range(100):
        rows = [tuple(stream.choice(pool) for _ in range(objectives)) for _ in range(stream.randint(0, 25))]
        assert fronts(rows) == peeled(rows)
