"""A remote experiment: its store is copied at once, its results and logs follow."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from tests.page.samples import trial_id, write_experiment

from muster.base.clock import SystemClock
from muster.page.catalog import Catalog
from muster.page.remote_files import RemoteFiles
from muster.page.trial_drawer import describe
from muster.stores.storage import Storage


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An experiment in fsspec's memory, which is as remote as a bucket to everything here."""
    place = write_experiment(tmp_path / "e", 12, 5)
    (place / f"train_{trial_id(2)}" / "stdout").write_text("hello from afar\n")
    (place / f"train_{trial_id(2)}" / "checkpoint_000001").mkdir()
    (place / f"train_{trial_id(2)}" / "checkpoint_000001" / "model").write_bytes(b"x")
    memory, bucket = fsspec.filesystem("memory"), f"remote-{uuid4().hex}"  # other tests have theirs
    memory.put(str(place), f"/{bucket}/e", recursive=True)
    yield f"memory://{bucket}/e"
    memory.rm(f"/{bucket}", recursive=True)


def opened(url: str):
    catalog = Catalog(clock=SystemClock(), experiments=[url])
    session = catalog.experiment(catalog.keys()[0])
    return catalog, session


def test_the_curves_of_a_remote_experiment_are_those_of_its_files(url: str):
    catalog, session = opened(url)
    end = time.monotonic() + 60
    while (band := session.curve_band("loss"))["points"] < 12 * 5 and time.monotonic() < end:
        session.refresh()
        time.sleep(0.02)
    assert (band["points"], band["behind"], len(band["x"])) == (12 * 5, 0, 5)
    assert len(session.curves_of([3], "loss")["3"][0]) == 5
    catalog.close()


def test_the_drawer_of_a_remote_trial_has_its_output_and_checkpoints(url: str):
    catalog, session = opened(url)
    folder = session.folder_of(trial_id(2))
    found = describe(session.trial(trial_id(2)), session.path, folder)
    assert (found["logs"], found["checkpoints"]) == ({"stdout": "hello from afar\n"}, ["checkpoint_000001"])
    catalog.close()


def test_a_folder_that_leads_out_of_the_copy_is_not_written(tmp_path: Path):
    (tmp_path / "remote" / "outside").mkdir(parents=True)
    (tmp_path / "remote" / "outside" / "result.json").write_text("{}\n")
    files = RemoteFiles(Storage(tmp_path / "remote"), str(tmp_path / "copy"))
    asked = []
    files.fetched = lambda row, folder: asked.append(row)
    files.want(0, "../outside")
    files.want(1, str(tmp_path / "remote" / "outside"))
    files.start()
    files.close()
    assert (asked, files.behind, (tmp_path / "outside").exists()) == ([], 0, False)
