"""Large parameters outlive their driver; an experiment without them is refused before a trial starts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

from muster import tune
from muster.errors import LedgerLocked, RestoreError
from muster.host.scratch_directory import ScratchDirectory
from muster.stores.experiment.store import STORE_NAME, SqliteTrialStore
from muster.tune.execution.restore import TRAINABLE_FILE, open_experiment
from muster.tune.trainable import stored_object

pytestmark = pytest.mark.slow
SIZE = 100_000


class Away(LocalFileSystem):
    """A storage that is not this machine's."""


def make_train(broken):
    def train(config, data, labels=None):
        if config["index"] and Path(broken).exists():
            raise RuntimeError("broken")
        return {"total": float(data.sum()) + config["index"] + (0 if labels is None else len(labels))}

    return train


class World:
    """One experiment, whose driver comes and goes."""

    def __init__(self, root: Path, filesystem) -> None:
        self.root, self.path, self.filesystem = root, root / "results" / "exp", filesystem
        self.broken = root / "broken"
        self.train = make_train(str(self.broken))

    def tuner(self, **parameters):
        return tune.Tuner(
            tune.with_parameters(self.train, **parameters),
            param_space={"index": tune.grid_search([0, 1])},
            run_config=tune.RunConfig(
                name="exp",
                storage_path=str(self.path.parent),
                storage_filesystem=self.filesystem,
                verbose=0,
            ),
        )

    def fit(self, **parameters):
        return self.tuner(**parameters).fit()

    def lose_driver(self) -> None:
        """Its temporary files go, and what it knew."""
        stored_object._scratch.remove()
        stored_object._known.clear()

    def here(self) -> Path:
        return Path(open_experiment(str(self.path), self.filesystem)[0].directory)

    def resume(self, trainable=None):
        tuner = tune.Tuner.restore(
            self.path,
            trainable,
            resume_errored=True,
            storage_filesystem=self.filesystem,
        )
        return tuner.fit()

    def kept(self) -> list[Path]:
        return sorted((self.path / "parameters").iterdir())


@pytest.fixture(params=["local", "remote"])
def world(request, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(stored_object, "_scratch", ScratchDirectory("muster-parameters-"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return World(tmp_path, Away() if request.param == "remote" else None)


def totals(grid) -> list[float]:
    return [result.metrics["total"] for result in grid if result.error is None]


def contents(*folders: Path) -> dict[str, bytes]:
    """All files but the lock, which every opening touches."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files if ".lock" not in file.name}


@pytest.fixture
def half_done(world):
    """An experiment whose second trial failed, whose cause is fixed, and whose driver is gone."""
    world.broken.touch()
    assert totals(world.fit(data=np.ones(SIZE), labels="few")) == [SIZE + 3.0]
    world.broken.unlink()
    world.lose_driver()
    return world


def test_another_process_resumes_with_the_parameters_of_the_first(half_done):
    assert totals(half_done.resume()) == [SIZE + 3.0, SIZE + 4.0]


def test_another_machine_resumes_with_the_parameters_of_the_first(half_done, monkeypatch):
    moved = half_done.root / "moved" / "exp"
    if half_done.filesystem is None:
        shutil.move(half_done.path, moved)
        half_done.path = moved
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(half_done.root / "another machine"))
    assert totals(half_done.resume()) == [SIZE + 3.0, SIZE + 4.0]


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_without_a_parameter_nothing_is_touched_until_it_is_passed_again(half_done, fault):
    (there,), here = half_done.kept(), half_done.here()
    for file in {there, here / "parameters" / there.name}:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.unlink()
        if fault == "damaged":
            file.write_bytes(content)
    before = contents(half_done.path, here)
    with pytest.raises(RestoreError, match="data"):
        half_done.resume()
    assert contents(half_done.path, here) == before
    again = tune.with_parameters(half_done.train, data=np.ones(SIZE), labels="few")
    assert totals(half_done.resume(again)) == [SIZE + 3.0, SIZE + 4.0]
    assert [file.name for file in half_done.kept()] == [there.name]


def test_a_parameter_that_is_damaged_here_is_fetched_again(half_done):
    if half_done.filesystem is None:
        pytest.skip("there is one copy only")
    (there,), here = half_done.kept(), half_done.here()
    (here / "parameters" / there.name).write_bytes(b"damaged")
    assert totals(half_done.resume()) == [SIZE + 3.0, SIZE + 4.0]


def test_the_next_resume_runs_what_the_last_one_ran(half_done):
    half_done.broken.touch()
    changed = tune.with_parameters(half_done.train, data=np.full(SIZE, 2.0), labels="few")
    assert totals(half_done.resume(changed)) == [SIZE + 3.0]
    half_done.broken.unlink()
    half_done.lose_driver()
    assert totals(half_done.resume()) == [SIZE + 3.0, 2 * SIZE + 4.0]


def test_runs_of_one_experiment_share_a_parameter_and_leave_no_other(world):
    data = np.ones(SIZE)
    names = []
    for scale in (1.0, 1.0, 2.0):
        world.fit(data=scale * data)
        names.append([file.name for file in world.kept()])
        assert (world.here() / STORE_NAME).exists()
    assert names[0] == names[1]
    assert [len(each) for each in names] == [1, 1, 1]
    assert names[2] != names[1]


def test_a_second_driver_of_a_running_experiment_leaves_its_trainable_alone(half_done):
    here = half_done.here()
    before = (here / TRAINABLE_FILE).read_bytes()
    with SqliteTrialStore(here), pytest.raises(LedgerLocked):
        half_done.fit(data=np.zeros(SIZE))
    assert (here / TRAINABLE_FILE).read_bytes() == before
    assert totals(half_done.resume()) == [SIZE + 3.0, SIZE + 4.0]


def test_a_driver_that_dies_between_tuner_and_fit_leaves_its_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_object, "_scratch", ScratchDirectory("muster-parameters-"))
    world = World(tmp_path, None)
    world.tuner(data=np.ones(SIZE))
    assert tune.Tuner.can_restore(world.path)
    world.lose_driver()
    assert [each.metrics["total"] for each in world.resume()] == [SIZE, SIZE + 1]
