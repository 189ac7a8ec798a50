"""Filling machines: never over capacity, limits or places, and close to the best knapsack."""

from __future__ import annotations

import itertools

import numpy as np

from muster.cluster.planner.cost.knapsack import KnapsackItems, best_fill, weightings
from muster.cluster.planner.cost.problem import Items, load_size


def test_limits_and_places_hold() -> None:
    items = Items(np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), real=2)
    free = np.array([[10.0, 3.0, 2.0], [4.0, 9.0, 0.0], [0.0, 0.0, 5.0]])
    knapsack = KnapsackItems(np.array([5.0, 3.0, 4.0]), np.array([1.0, 1.0, 0.1]))
    loads = best_fill(
        free, items, None, knapsack, weightings(items.real, items.size.shape[1] - items.real, 13)
    )
    assert (load_size(loads, items) <= free).all()
    assert (loads <= knapsack.limit).all()
    assert loads.tolist() == [[2.0, 3.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]


def test_what_is_not_allowed_is_not_placed() -> None:
    items = Items(np.array([[1.0], [1.0]]), real=1)
    allowed = np.array([[False, True], [True, False], [False, False]])
    knapsack = KnapsackItems(np.array([9.0, 9.0]), np.array([5.0, 1.0]))
    loads = best_fill(
        np.full((3, 1), 4.0),
        items,
        allowed,
        knapsack,
        weightings(items.real, items.size.shape[1] - items.real, 13),
    )
    assert loads.tolist() == [[0.0, 4.0], [4.0, 0.0], [0.0, 0.0]]


def test_within_a_twentieth_of_the_best_knapsack_on_average() -> None:
    draw = np.random.default_rng(11)
    reached = []
    for _ in range(30):
        items = Items(draw.integers(1, 6, (3, 2)).astype(float), real=2)
        free = draw.integers(8, 20, (1, 2)).astype(float)
        knapsack = KnapsackItems(np.full(3, 8.0), items.size.sum(axis=1) * draw.uniform(0.7, 1.3, 3))
        load = best_fill(
            free, items, None, knapsack, weightings(items.real, items.size.shape[1] - items.real, 13)
        )[0]
        counts = np.array(list(itertools.product(range(9), repeat=3)), dtype=float)
        able = counts[(counts @ items.size <= free[0]).all(axis=1)]
        reached.append(float(load @ knapsack.value) / float((able @ knapsack.value).max()))
    assert max(reached) <= 1.0 + 1e-9
    assert min(reached) >= 0.8
    assert sum(reached) / len(reached) >= 0.95
