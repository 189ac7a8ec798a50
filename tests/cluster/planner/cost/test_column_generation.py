"""The master problem of the cost engine: known optima."""

from __future__ import annotations

import numpy as np
import pytest

from muster.cluster.planner.cost.column_generation import MasterProblem


def solved(rhs: list[float], cover: int, columns: list[list[float]], cost: list[float]) -> MasterProblem:
    master = MasterProblem(np.array(rhs), cover, unserved_cost=1_000.0)
    master.add(np.array(columns), np.array(cost))
    master.run(1_000)
    return master


def total(master: MasterProblem, cost: list[float]) -> float:
    index, amounts = master.amounts()
    return float((np.array(cost)[index] * amounts).sum())


def test_the_cheapest_cover_may_use_a_pattern_in_part() -> None:
    cost = [2.0, 2.0, 3.0]
    master = solved([3.0, 3.0], 2, [[1, 0], [0, 1], [1, 1]], cost)
    assert total(master, cost) == pytest.approx(9.0)
    assert (master.duals.sum() * 3) == pytest.approx(9.0)


def test_a_limit_turns_to_the_dearer_pattern_and_has_a_price() -> None:
    cost = [1.0, 3.0]
    master = solved([4.0, 1.0], 1, [[2, 1], [2, 0]], cost)
    index, amounts = master.amounts()
    assert dict(zip(index.tolist(), amounts.round(6).tolist(), strict=True)) == {0: 1.0, 1: 1.0}
    assert -master.duals[1] == pytest.approx(2.0)


def test_what_nothing_covers_is_left_unserved_at_its_price() -> None:
    master = solved([2.0, 5.0], 2, [[1, 0]], [1.0])
    assert master.duals.tolist() == pytest.approx([1.0, 1_000.0])


def test_columns_added_later_improve_the_answer() -> None:
    master = solved([10.0], 1, [[1.0]], [1.0])
    master.add(np.array([[5.0]]), np.array([2.0]))
    master.run(1_000)
    assert master.amounts()[1].tolist() == pytest.approx([2.0])


def test_random_covers_satisfy_weak_and_strong_duality() -> None:
    draw = np.random.default_rng(7)
    for _ in range(20):
        columns = draw.integers(0, 5, (60, 12)).astype(float)
        columns[:12] += np.eye(12)
        cost, rhs = draw.uniform(1, 9, 60), draw.integers(1, 50, 12).astype(float)
        master = solved(rhs.tolist(), 12, columns.tolist(), cost.tolist())
        index, amounts = master.amounts()
        assert (amounts @ columns[index] >= rhs - 1e-6).all()
        assert (columns @ master.duals <= cost + 1e-6).all()
        assert total(master, cost.tolist()) == pytest.approx(float(master.duals @ rhs), rel=1e-6)
