"""The series of test_kill.py on a Ray cluster: actors outlive a killed driver for a moment."""

from __future__ import annotations

from dataclasses import replace
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


CELLS = [
    *(Cell(*each) for each in product(SCHEDULERS, ["random"], ["one", "many"], ["local", "remote"])),
    *(Cell("fifo", crowd="one", storage=each, objects="large") for each in ("local", "remote")),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_killed_experiment_ends_as_if_nothing_had_happened(tmp_path, head, kills, cell):
    run_cell(replace(cell, environment=head), 2, tmp_path, kills)
    assert len(kills) == 2
