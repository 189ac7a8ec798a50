"""Ray's PopulationBasedTraining on our simulated engine: the adapter carries out everything it decides."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "ray.tune", exc_type=ImportError, reason="Ray Tune is not installed: pip install 'muster-ml[bench]'"
)

from bench.peer import population
from bench.schedulers_run import Entry, run_candidate

RAY = Entry("pbt", is_ray=True)


@pytest.fixture
def made(monkeypatch):
    """The schedulers that races made."""
    found = []
    original = population.population

    def noted(settings):
        found.append(original(settings))
        return found[-1]

    monkeypatch.setattr(population, "population", noted)
    return found


def test_every_exploit_that_ray_decides_is_carried_out(made):
    done = run_candidate("power_law", RAY, 3, 24)  # more trials than workers: they take turns
    (boxed,) = made
    assert boxed.num_exploits > 10
    assert f" {boxed.num_exploits} perturbs" in boxed.debug_string()
    assert done.values[-1] < done.values[0]


def test_equal_seeds_make_equal_races():
    assert run_candidate("branin", RAY, 5, 16) == run_candidate("branin", RAY, 5, 16)


def test_choices_and_integers_are_changed_too(made):
    run_candidate("conditional", RAY, 1, 16)
    assert made[0].num_exploits > 5
