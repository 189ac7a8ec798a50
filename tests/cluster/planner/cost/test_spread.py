"""Check how equal gangs are split: every gang complete, none twice on a node."""

from __future__ import annotations

import random

from muster.cluster.planner.cost.gangs import split_gangs


def is_proper(slots: list[list[tuple[int, int]]], per_gang: list[int]) -> bool:
    want = sorted(cls for cls, count in enumerate(per_gang) for _ in range(count))
    return all(
        len({row for row, _ in gang}) == len(gang) and sorted(cls for _, cls in gang) == want
        for gang in slots
    )


def test_two_gangs_of_two_on_two_nodes() -> None:
    slots = split_gangs([[2], [2]], [2], 2)
    assert [sorted(gang) for gang in slots] == [[(0, 0), (1, 0)], [(0, 0), (1, 0)]]


def test_any_loads_that_add_up_can_be_split() -> None:
    draw = random.Random(3)
    for _ in range(60):
        gangs, per_gang = draw.randint(1, 7), [draw.randint(1, 3) for _ in range(draw.randint(1, 3))]
        rows = draw.randint(sum(per_gang), sum(per_gang) + 4)
        loads = [[0] * len(per_gang) for _ in range(rows)]
        for _ in range(gangs):  # lay whole gangs down at random, then forget whose is what
            places = draw.sample(range(rows), sum(per_gang))
            for cls, count in enumerate(per_gang):
                for _ in range(count):
                    loads[places.pop()][cls] += 1
        slots = split_gangs(loads, per_gang, gangs)
        assert len(slots) == gangs
        assert is_proper(slots, per_gang)
        used = [[0] * len(per_gang) for _ in range(rows)]
        for gang in slots:
            for row, cls in gang:
                used[row][cls] += 1
        assert used == loads


def test_with_too_few_seats_as_many_whole_gangs_as_there_are() -> None:
    assert [sorted(gang) for gang in split_gangs([[3], [1], [1]], [3], 3)] == [[(0, 0), (1, 0), (2, 0)]]
    assert split_gangs([[3], [3]], [3], 3) == []
