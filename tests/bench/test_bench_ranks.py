from __future__ import annotations

import random

import pytest
from bench.rank_test import compared, signed_rank_p


def test_three_against_three_is_counted_by_hand():
    assert compared([1, 2, 3], [4, 5, 6]) == (1.0, 2 / 20)  # 20 orders, two of them as extreme
    assert compared([4, 5, 6], [1, 2, 3]) == (0.0, 2 / 20)
    assert compared([1, 4, 5], [2, 3, 6]) == (5 / 9, 1.0)


def test_equal_samples_do_not_differ():
    assert compared([1.0] * 20, [1.0] * 20) == (0.5, 1.0)
    assert compared([1.0, 2.0], [1.0, 2.0]) == (0.5, 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_it_agrees_with_scipy(seed):
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(seed)
    one, other = ([draw.gauss(shift, 1) for _ in range(20 - shift)] for shift in (0, 1))
    method = "exact"
    if seed % 2:
        one, other, method = [round(x, 1) for x in one], [round(x, 1) for x in other], "asymptotic"
    told = stats.mannwhitneyu(one, other, method=method)
    found = compared(one, other)
    assert found.p == pytest.approx(told.pvalue, rel=1e-9)
    assert found.chance == pytest.approx(1 - told.statistic / (len(one) * len(other)))


def test_at_one_in_a_hundred_one_in_a_hundred_is_a_false_alarm():
    draw = random.Random(1)
    alarms = sum(
        compared([draw.random() for _ in range(20)], [draw.random() for _ in range(20)]).p < 0.01
        for _ in range(400)
    )
    assert alarms <= 12


def test_signed_ranks_are_counted_by_hand():
    assert signed_rank_p([1, 2, 3]) == 2 / 8
    assert signed_rank_p([1, -2, 3]) == 6 / 8  # of eight sums, two are nearer to the middle
    assert signed_rank_p([0.0, 0.0]) == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_signed_ranks_agree_with_scipy(seed):
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(seed)
    values = [draw.gauss(0.4, 1) for _ in range(18)]
    assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)
