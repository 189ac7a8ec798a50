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

STEPS = 12


class Bucket(LocalFileSystem):
    """A directory that is filled as object stores are: a file is there whole or not at all."""

    def put_file(self, lpath, rpath, **options):
        partial = f"{rpath}.{threading.get_ident()}"
        shutil.copyfile(lpath, partial)
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
