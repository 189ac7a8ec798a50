from __future__ import annotations

import math
import random
import time

import pytest

from muster.tune.pareto import ParetoOrder, fronts


def peeled(rows):
    """Return fronts by the definition: remove what nothing dominates, again and again."""

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


def spread(rows):
    """Return the crowding distance of each row of a front, by the definition."""
    found = [0.0] * len(rows)
    for values in zip(*rows, strict=True):
        order = sorted(range(len(rows)), key=values.__getitem__)
        span = values[order[-1]] - values[order[0]]
        for before, place, after in zip(order, order[1:], order[2:], strict=False):
            found[place] += (values[after] - values[before]) / span if 0 < span < math.inf else 0.0
        found[order[0]] = found[order[-1]] = math.inf
    return found


def brute_force(rows, violations):
    """Return all members, best first: by front, crowding and arrival, then by violation, then with NaN."""
    unknown = [place for place, row in enumerate(rows) if any(value != value for value in row)]
    known = [place for place in range(len(rows)) if place not in unknown]
    infeasible = sorted((place for place in known if violations[place] > 0), key=violations.__getitem__)
    feasible = [place for place in known if not violations[place] > 0]
    at = dict(zip(feasible, peeled([rows[place] for place in feasible]), strict=True))
    ordered = []
    for front in range(max(at.values(), default=-1) + 1):
        members = [place for place in feasible if at[place] == front]
        distance = dict(zip(members, spread([rows[place] for place in members]), strict=True))
        ordered += sorted(members, key=lambda place: -distance[place])
    return [*ordered, *infeasible, *unknown]


def drawn_rung(stream):
    pool = stream.choice(
        [[0.0, -0.0, 1.0, 2.0, 3.5, math.inf, -math.inf, math.nan], [0.0, 0.1, 0.7, 1e308], []]
    )
    count, objectives = stream.randint(1, 24), stream.choice([2, 2, 3, 4])

    def value():
        return stream.choice(pool) if pool and stream.random() < 0.8 else stream.random()

    rows = [tuple(value() for _ in range(objectives)) for _ in range(count)]
    broken = stream.choice([0.0, 0.0, 0.3, 1.0])
    violations = [stream.choice([0.1, 0.2, math.inf]) if stream.random() < broken else 0.0 for _ in rows]
    return rows, violations


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_the_order_is_that_of_brute_force_on_2000_rungs(seed):
    stream = random.Random(seed)
    for _ in range(100):
        rows, violations = drawn_rung(stream)
        order = ParetoOrder()
        for count, (row, violation) in enumerate(zip(rows, violations, strict=True), 1):
            number = order.add(row, violation)
            if stream.random() < 0.2:
                expected = brute_force(rows[:count], violations[:count])
                assert order.place(number) == expected.index(number)
        expected = brute_force(rows, violations)
        assert list(order.best_first()) == expected
        assert [order.place(number) for number in expected] == list(range(len(rows)))
        assert order.num_feasible == sum(order.front(number) is not None for number in expected)


def test_a_new_result_is_placed_within_its_time():
    def plane(stream):
        value = stream.random()
        return value, 1.0 - value + stream.choice([0.0, 0.1]) * stream.random()

    def cost_ms(count, draw):
        stream, order = random.Random(5), ParetoOrder()
        for _ in range(count):
            order.add(draw(stream))
        began = time.process_time()
        for _ in range(50):
            order.place(order.add(draw(stream)))
        return (time.process_time() - began) / 50 * 1e3

    assert cost_ms(1_000, lambda stream: (stream.random(), stream.random())) < 0.3
    assert cost_ms(1_000, plane) < 0.3
    assert cost_ms(1_000, lambda stream: (stream.random(), stream.random(), stream.random())) < 5.0
