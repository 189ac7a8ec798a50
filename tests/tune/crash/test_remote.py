"""What lies on a remote storage at any moment is an experiment that can be gone on with, results and all."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from muster import tune
from muster.stores.experiment.reader import STORE_NAME
from muster.stores.mirror import MirrorInterval
from muster.stores.storage import MARKER
from muster.tune.search.optuna import OptunaSearch

STEPS = 12


class Bucket(LocalFileSystem):
    """A directory that is filled as object stores are: a file is there whole or not at all."""

    cachable = False
    keeps_first: Path | None = None  # where the first store goes as well

    def put_file(self, lpath, rpath, **options):
        self.written = [*getattr(self, "written", ()), Path(rpath).name]
        partial = f"{rpath}.{threading.get_ident()}"
        shutil.copyfile(lpath, partial)
        if self.keeps_first is not None and rpath.endswith(STORE_NAME) and not self.keeps_first.exists():
            shutil.copyfile(partial, self.keeps_first)
        os.replace(partial, rpath)


def train(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = json.loads(Path(directory, "step").read_text())
    for step in range(start + 1, STEPS + 1):
        time.sleep(config["pause_s"])
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            kept = tune.Checkpoint.from_directory(directory) if step % 3 == 0 else None
            tune.report({"step": step}, checkpoint=kept)


def keep_copies(bucket, copies, is_over):
    """As if this machine had been lost at two moments. The store first: what it knows must be there then."""
    number = 0
    while not is_over.wait(1.0) and number < 2:
        if (bucket / STORE_NAME).exists():
            copy = copies / str(number) / "exp"
            copy.mkdir(parents=True)
            shutil.copyfile(bucket / STORE_NAME, copy / STORE_NAME)
            shutil.copytree(bucket, copy, dirs_exist_ok=True, ignore=lambda folder, names: {STORE_NAME})
            number += 1


@pytest.mark.slow
def test_a_lost_machine_costs_no_result_that_its_storage_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "muster.stores.mirror.MirrorInterval",
        functools.partial(MirrorInterval, again_s=30.0, store_s=0.2),
        raising=True,
    )
    monkeypatch.setattr("muster.tune.execution.upload.LOGS_EVERY_S", 0.1)
    tuner = tune.Tuner(
        train,
        param_space={"trial": tune.grid_search(list(range(6))), "pause_s": 0.06},
        run_config=tune.RunConfig(
            name="exp", storage_path=str(tmp_path / "bucket"), storage_filesystem=Bucket(), verbose=0
        ),
    )
    is_over, copies = threading.Event(), tmp_path / "copies"
    copier = threading.Thread(target=keep_copies, args=(tmp_path / "bucket" / "exp", copies, is_over))
    copier.start()
    assert tuner.fit().num_errors == 0
    is_over.set()
    copier.join()
    assert len(list(copies.iterdir())) >= 1
    for copy in sorted(copies.iterdir()):
        grid = tune.Tuner.restore(copy / "exp", train).fit()
        assert (len(grid), grid.num_errors) == (6, 0)
        rows = [[row["step"] for row in result.metrics_history] for result in grid]
        assert rows == [list(range(1, STEPS + 1))] * 6


def make_tuner(tmp_path, bucket, searcher=None):
    return tune.Tuner(
        train,
        param_space={"trial": tune.uniform(0, 1), "pause_s": 0.0},
        tune_config=tune.TuneConfig(num_samples=3, search_alg=searcher, metric="step", mode="max"),
        run_config=tune.RunConfig(
            name="exp", storage_path=str(tmp_path / "bucket"), storage_filesystem=bucket, verbose=0
        ),
    )


def resumed_elsewhere(tmp_path, monkeypatch, machine="another machine"):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
    return tune.Tuner.restore(tmp_path / "bucket" / "exp", train, storage_filesystem=Bucket()).fit()


def directories(tmp_path):
    return sorted(file.parent.name for file in (tmp_path / "bucket" / "exp").glob("*/result.json"))


def test_a_machine_that_is_lost_before_it_copied_the_store_costs_no_more_than_that(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    assert make_tuner(tmp_path, Bucket()).fit().num_errors == 0
    for each in (tmp_path / "bucket" / "exp").iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name == STORE_NAME:
            each.unlink()
    grid = resumed_elsewhere(tmp_path, monkeypatch)
    assert [result.metrics["step"] for result in grid] == [STEPS] * 3
    assert len(directories(tmp_path)) == 3


@pytest.mark.parametrize("make_searcher", [lambda: None, lambda: OptunaSearch(seed=1)])
def test_trials_that_the_store_there_does_not_know_are_not_there_twice(tmp_path, monkeypatch, make_searcher):
    """The machine is lost when all trials are on the storage, and the store there is the first one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    bucket = Bucket()
    bucket.keeps_first = tmp_path / "first"
    assert make_tuner(tmp_path, bucket, make_searcher()).fit().num_errors == 0
    before = directories(tmp_path)
    assert set(bucket.written[: bucket.written.index(STORE_NAME)]) == {"trainable.pkl", "tuner.pkl"}
    os.replace(tmp_path / "first", tmp_path / "bucket" / "exp" / STORE_NAME)
    time.sleep(1.0)  # directories are named after the second
    grid = resumed_elsewhere(tmp_path, monkeypatch)
    assert [result.metrics["step"] for result in grid] == [STEPS] * 3
    assert len(directories(tmp_path)) == len(before) == 3
    after = directories(tmp_path)
    assert after != before
    lost = before[0] if before[0] not in after else before[1]
    shutil.copytree(tmp_path / "bucket" / "exp" / after[0], tmp_path / "bucket" / "exp" / lost)
    mine = tmp_path / "bucket" / "exp" / f"plots_{grid[0].metrics['trial_id']}_mine"
    mine.mkdir()
    (mine / "plot").write_bytes(b"a user's own")
    resumed_elsewhere(tmp_path, monkeypatch, "a third")  # the second was killed before it deleted that
    assert directories(tmp_path) == after
    assert (mine / "plot").exists()


def test_without_its_marker_a_storage_is_resumed_in_one_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    before = [result.metrics["trial_id"] for result in make_tuner(tmp_path, Bucket()).fit()]
    (tmp_path / "bucket" / "exp" / MARKER).write_bytes(b"")  # killed while it wrote the marker
    for _ in range(2):
        grid = resumed_elsewhere(tmp_path, monkeypatch)
        assert [result.metrics["trial_id"] for result in grid] == before


class Interrupted(Bucket):
    """Ends the program at its fourth file."""

    def get_file(self, rpath, lpath, **options):
        self.fetched = getattr(self, "fetched", 0) + 1
        if self.fetched == 4:
            raise KeyboardInterrupt
        super().get_file(rpath, lpath, **options)


def test_a_machine_that_is_killed_while_it_fetches_fetches_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    assert make_tuner(tmp_path, Bucket()).fit().num_errors == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(KeyboardInterrupt):
        tune.Tuner.restore(tmp_path / "bucket" / "exp", train, storage_filesystem=Interrupted())
    grid = resumed_elsewhere(tmp_path, monkeypatch)
    assert [len(result.metrics_history) for result in grid] == [STEPS] * 3
    here = (tmp_path / "another machine").rglob("result.json")
    assert [len(file.read_text().splitlines()) for file in here] == [STEPS] * 3
