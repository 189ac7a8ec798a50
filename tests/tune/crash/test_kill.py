"""A driver killed with -9 at random moments and resumed each time: nothing lost or doubled, no orphan.

Alone or with its whole process group; mostly while trials make steps, at times right after it began; with
remote storage at times with the machine, whose copy is then gone. `make test` runs a sample; `make series`
all: 256 kills, those of test_kill_on_ray.py included.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from tests.series import IS_WHOLE, length
from tests.support.builders import created
from tests.tune.crash.lives import Cell, run_cell
from tests.tune.crash.victim import SCHEDULERS, undo_unknown_failures

from muster.stores.experiment.store import STORE_NAME, SqliteTrialStore
from muster.trials.events import TrialExited, TrialFailure, TrialFailureKind

CELLS = [
    *(Cell(*each) for each in product(SCHEDULERS, ["random"], ["one", "many"], ["local", "remote"])),
    Cell("stopping", "optuna"),
    Cell("promotion", "optuna"),
    *(Cell(each, storage="remote", objects="large") for each in ("promotion", "pbt")),
]
SAMPLE = [
    Cell("stopping", "optuna", "one"),
    Cell("promotion", crowd="many"),
    Cell("pbt", crowd="many"),
    Cell("fifo", crowd="many", storage="remote"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds orphans through /proc")
@pytest.mark.parametrize("cell", CELLS if IS_WHOLE else SAMPLE, ids=str)
def test_a_killed_experiment_ends_as_if_nothing_had_happened(tmp_path, kills, cell):
    run_cell(cell, length(2, 4), tmp_path, kills)
    assert len(kills) == length(2, 4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds orphans through /proc")
@pytest.mark.parametrize("storage", ["local", "s3"])
def test_large_parameters_outlive_their_driver(tmp_path, kills, request, storage):
    """Resumed by the script and by `muster tune resume`, after another experiment has run."""
    bucket = request.getfixturevalue("bucket").environment if storage == "s3" else {}
    cell = Cell("fifo", crowd="one", storage=storage, objects="large", bucket=bucket)
    run_cell(cell, length(1, 10), tmp_path, kills)
    assert len(kills) == length(1, 10)


def test_a_failure_that_was_lost_with_its_machine_happens_again(tmp_path):
    notes, failed = tmp_path / "notes", TrialFailure(kind=TrialFailureKind.USER_ERROR, message="fails once")
    notes.mkdir()
    for name in ("known.failed", "lost.failed", "known"):
        (notes / name).touch()
    with SqliteTrialStore(tmp_path) as store:
        store.append([created("known"), created("lost")])
        store.append([TrialExited(trial_id="known", at=2.0, failure=failed)])
    undo_unknown_failures(tmp_path, notes)
    assert sorted(each.name for each in notes.iterdir()) == ["known", "known.failed"]


def test_without_a_store_no_failure_is_known(tmp_path):
    (tmp_path / "lost.failed").touch()
    for make in (
        lambda: None,
        (tmp_path / STORE_NAME).touch,
    ):  # a driver may be killed when it has just begun
        make()
        undo_unknown_failures(tmp_path, tmp_path)
        assert not (tmp_path / "lost.failed").exists()
        (tmp_path / "lost.failed").touch()
