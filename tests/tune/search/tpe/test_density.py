from __future__ import annotations

import math

import numpy as np
import pytest
from tests.tune.search.tpe.slow_model import suggested
from tests.tune.search.tpe.spaces import SPACES, loss

from muster.tune.search.space import choice, randint, uniform
from muster.tune.search.space_tree import SpaceTree
from muster.tune.search.tpe import TPESearch
from muster.tune.search.tpe.coordinates import Coordinates
from muster.tune.search.tpe.density import GroupModel, log_mass, upper_tail
from muster.tune.search.tpe.table import COMPLETE, SearchTable


def fitted(space, count, seed=0, good=5):
    coordinates = Coordinates(SpaceTree("test", space, keeps_constants=False))
    table = SearchTable(len(coordinates.scales), len(coordinates.sizes), 1)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        unit = rng.random(len(coordinates.scales) + len(coordinates.sizes))
        place = table.add(coordinates.place(unit))
        table.record(place, [float(rng.random())], 0.0, math.inf)
        table.status[place] = COMPLETE
    model = GroupModel(coordinates, coordinates.groups[0])
    return model.fit(table, table.good()[:good])


def test_the_tail_is_that_of_the_normal_distribution():
    z = np.linspace(0, 8, 2001)
    exact = [0.5 * math.erfc(each / math.sqrt(2)) for each in z]
    assert np.abs(upper_tail(z) - exact).max() < 1.5e-7


def test_the_mass_inside_the_bounds_is_that_of_erf():
    rng = np.random.default_rng(0)
    u, width = rng.random((3, 50)), rng.uniform(0.01, 1, (3, 50))
    inside = [
        [
            0.5 * (math.erf((1 - m) / s / math.sqrt(2)) + math.erf(m / s / math.sqrt(2)))
            for m, s in zip(*row, strict=True)
        ]
        for row in zip(u, width, strict=True)
    ]
    expected = np.log(np.array(inside) * width).sum(axis=0)
    assert np.abs(log_mass(u, width) - expected).max() < 1e-4  # tails beyond four deviations are left out


@pytest.mark.parametrize("count", [1, 2, 30, 200])
def test_each_density_is_one_in_total(count):
    grid = (np.arange(400) + 0.5) / 400
    for mixture in fitted({"x": uniform(0, 1), "y": uniform(0, 1)}, count):
        x, y = np.meshgrid(grid, grid)
        points = np.stack([x.ravel(), y.ravel()])
        values = np.exp(mixture.log_density(points, np.empty((0, points.shape[1]), dtype=np.int32)))
        assert values.mean() == pytest.approx(1, abs=2e-3)


def test_the_options_of_a_choice_have_one_in_total():
    for mixture in fitted({"a": choice([1, 2, 3]), "b": choice("wxyz")}, 40):
        points = np.array([(a, b) for a in range(3) for b in range(4)], dtype=np.int32).T
        assert np.exp(mixture.log_density(np.empty((0, 12)), points)).sum() == pytest.approx(1)


def test_drawn_candidates_follow_the_density():
    mixture, _ = fitted({"x": uniform(0, 1), "c": choice([0, 1])}, 30)
    u, c = mixture.draw(np.random.default_rng(1), 40_000)
    counts, edges = np.histogram(u[0], bins=20, range=(0, 1))
    middle = (edges[:-1] + edges[1:]) / 2
    fine = (np.arange(2000) + 0.5) / 2000
    density = sum(
        np.exp(mixture.log_density(fine[None], np.full((1, 2000), option, dtype=np.int32)))
        for option in (0, 1)
    )
    expected = density.reshape(20, 100).mean(axis=1) / 20
    assert np.abs(counts / 40_000 - expected).max() < 0.01, middle
    assert 0 < c.mean() < 1


def test_an_integer_kernel_is_at_least_one_bin_wide():
    better, others = fitted({"n": randint(0, 4)}, 300)
    assert better.width.min() >= 0.25
    assert others.width.min() >= 0.25


def test_three_hundred_dimensions_and_a_thousand_options_are_finite():
    space = {f"x{i}": uniform(0, 1) for i in range(300)} | {"c": choice(list(range(1000)))}
    better, others = fitted(space, 40)
    u, c = better.draw(np.random.default_rng(0), 64)
    assert np.isfinite(better.log_density(u, c) - others.log_density(u, c)).all()


@pytest.mark.parametrize("name", ["floats", "mixed", "conditional", "goals"])
def test_suggestions_are_those_of_the_slow_model(name):
    space, goals = SPACES[name]
    made = TPESearch(seed=3, n_candidates=24)
    made.set_search_properties(
        [*"ab"][:goals] if goals > 1 else "a", ["min"] * goals if goals > 1 else "min", space
    )
    live = []
    for number in range(45):
        if number >= 25:
            table, coordinates = made._table, made._coordinates
            expected = suggested(coordinates, table, 3, number, 24)
            config = made.suggest(str(number))
            assert table.point(table.count - 1).key() == expected.key()
        else:
            config = made.suggest(str(number))
        live.append((str(number), config))
        if len(live) == 4:
            key, config = live.pop(number % 3)
            made.on_trial_complete(key, dict(zip("ab", loss(config), strict=True)), error=number % 11 == 7)
