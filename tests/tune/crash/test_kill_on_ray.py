"""The series of test_kill.py on a Ray cluster: actors outlive a killed driver for a moment."""

from __future__ import annotations

from itertools import product

import pytest
from tests.ray_clusters import clear
from tests.series import IS_WHOLE
from tests.tune.crash.lives import Cell, run_cell
from tests.tune.crash.victim import SCHEDULERS

__test__ = IS_WHOLE  # it takes half an hour: only `make series` runs it
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def head(plain_head):
    clear(plain_head)
    return plain_head.environment()


@pytest.mark.parametrize(
    ("kind", "crowd", "storage"), [*product(SCHEDULERS, ["one", "many"], ["local", "remote"])]
)
def test_a_killed_experiment_ends_as_if_nothing_had_happened(tmp_path, head, kills, kind, crowd, storage):
    cell = Cell(kind, crowd=crowd, storage=storage, environment=head)
    run_cell(cell, 2, tmp_path, kills)
    assert len(kills) == 2
