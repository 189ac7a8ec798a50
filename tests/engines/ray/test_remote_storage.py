"""What the actor of a node does that shares no directory with the driver; the storage is a real directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from muster.base.clock import ManualClock
from muster.engines.ray.actor import open_storage
from muster.engines.ray.remote_storage import RemoteStorage, StorageTransfer
from muster.engines.worker.protocol import StartOrder
from muster.errors import StoreError
from muster.session.publish import MANIFEST, publish_copy
from muster.stores.storage import MARKER, Storage

DRIVER = "/driver/exp"  # nowhere on this machine


class Remote(DirFileSystem):
    """A directory; refuses as many writes as instructed to, and remembers the order of the others."""

    cachable = False

    def __init__(self, path):
        super().__init__(path=str(path), fs=LocalFileSystem(auto_mkdir=True))
        self.refusals, self.written = 0, []

    def put_file(self, lpath, rpath, **options):
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("reset by peer")
        self.written.append(rpath.removeprefix("exp/"))
        super().put_file(lpath, rpath, **options)


class Clock(ManualClock):
    """Something happens while it is slept."""

    def __init__(self):
        super().__init__()
        self.naps, self.meanwhile = [], None

    def sleep(self, seconds):
        super().sleep(seconds)
        self.naps.append(seconds)
        if self.meanwhile is not None and len(self.naps) == 3:
            self.meanwhile()


@pytest.fixture
def remote(tmp_path):
    return Remote(tmp_path / "bucket")


@pytest.fixture
def storage(remote):
    made = Storage("exp", remote)
    made.validate()
    return made


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """All that a node may write to."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def make(remote, storage, clock):
    def made(*, sees=False, root=DRIVER, **more):
        return StorageTransfer(RemoteStorage("exp", remote, root, **more), sees=sees, clock=clock)

    return made


def order(trial_dir=f"{DRIVER}/t", **more):
    told = {
        "trial_id": "t",
        "trial_name": "t",
        "trainable_name": "f",
        "config": {},
        "bundles": ([{}], "PACK"),
        "trial_dir": str(trial_dir),
        "experiment_name": "exp",
        "checkpoint_path": None,
        "checkpoint_metrics": None,
        "checkpoint_index": -1,
        "log_to_file": (None, None),
        "stays_when_done": True,
        "env": {},
    }
    return StartOrder(**{**told, **more})


def published(folder, name, tmp_path, **files):
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    for file, content in files.items():
        (source / file).write_text(content)
    os.makedirs(folder, exist_ok=True)
    return publish_copy(str(source), str(folder), name)


def below(place):
    return sorted(str(each.relative_to(place)) for each in Path(place).rglob("*") if each.is_file())


def test_a_checkpoint_is_in_the_storage_with_its_manifest_last_and_only_the_newest_stays_here(
    make, remote, storage, tmp_path, scratch
):
    carrier = make()
    here = carrier.prepare(order()).trial_dir
    assert here.startswith(str(scratch))
    for number in range(3):
        name = f"checkpoint_{number:06d}"
        carrier.clear_leftovers(name)
        carrier.keep(published(here, name, tmp_path, zz="late", a="x" * number))
    each = [f"checkpoint_00000{number}/{file}" for number in range(3) for file in ("a", "zz", MANIFEST)]
    assert remote.written == [f"t/{name}" for name in each]
    assert os.listdir(here) == ["checkpoint_000002"]
    carrier.finish()
    carrier.close()
    assert (below(scratch), sorted(storage.sizes("t"))) == ([], sorted(each))


def test_logs_go_with_each_checkpoint_and_the_rest_only_where_it_is_wanted(make, remote, storage, tmp_path):
    for wanted in (False, True):
        carrier = make(with_artifacts=wanted, reserved=("result.json",))
        here = Path(carrier.prepare(order(log_to_file=("out", None))).trial_dir)
        (here / "out").write_text("one")
        (here / "result.json").write_text("mine")
        (here / "plot").write_text("p")
        carrier.keep(published(here, "checkpoint_000000", tmp_path, a="1"))
        assert storage.read("t/out") == b"one"
        (here / "out").write_text("one two")
        remote.written.clear()
        carrier.finish()
        assert remote.written == ["t/out"]  # nothing is sent twice
        names = {"checkpoint_000000/a", f"checkpoint_000000/{MANIFEST}", "out"}
        assert set(storage.sizes("t")) == names | ({"plot"} if wanted else set())
        storage.delete_dir("t")


def test_a_trial_that_ran_elsewhere_goes_on_in_its_log(make, storage, remote):
    remote.makedirs("exp/t", exist_ok=True)
    remote.pipe_file("exp/t/out", b"before\n")
    carrier = make()
    here = carrier.prepare(order(log_to_file=("out", "err"))).trial_dir
    assert (below(here), Path(here, "out").read_text()) == (["out"], "before\n")


def test_a_failed_copy_is_tried_again_and_then_the_trials_error(make, remote, clock, tmp_path):
    carrier = make()
    made = published(carrier.prepare(order()).trial_dir, "checkpoint_000000", tmp_path, a="1")
    remote.refusals = 3
    carrier.keep(made)
    assert (remote.written[0], clock.naps) == ("t/checkpoint_000000/a", [1.0, 2.0, 4.0])
    remote.refusals = 4
    with pytest.raises(StoreError) as caught:
        carrier.keep(made)
    told = str(caught.value)
    assert re.search(r" exp/t/checkpoint_000000 .* 4 \w+: .*\bTuner\.restore\b", told)


def test_what_an_unheard_attempt_left_goes_before_its_name_is_used_again(make, remote, storage):
    for number in (1, 2, 3):
        remote.makedirs(f"exp/t/checkpoint_00000{number}", exist_ok=True)
        remote.pipe_file(f"exp/t/checkpoint_00000{number}/left", b"x")
    remote.pipe_file("exp/t/checkpoint_best", b"the user's own")
    seeing = make(sees=True, root=str(remote.path))
    seeing.prepare(order(trial_dir=f"{remote.path}/t"))
    seeing.clear_leftovers("checkpoint_000002")
    assert len(storage.sizes("t")) == 4  # no earlier attempt of it was elsewhere: nothing is looked for
    carrier = make()
    carrier.prepare(order())
    carrier.clear_leftovers("checkpoint_000002")
    assert list(storage.sizes("t")) == ["checkpoint_000001/left", "checkpoint_best"]


def test_a_checkpoint_that_is_still_on_its_way_is_waited_for(make, storage, clock, tmp_path, scratch):
    source = published(tmp_path / "there", "checkpoint_000004", tmp_path, a="1", b="22")
    for file in ("a", "b"):
        storage.upload_file(f"{source}/{file}", f"o/checkpoint_000004/{file}")
    clock.meanwhile = lambda: storage.upload_file(f"{source}/{MANIFEST}", f"o/checkpoint_000004/{MANIFEST}")
    carrier = make()
    brought = carrier.prepare(order(checkpoint_path=f"{DRIVER}/o/checkpoint_000004")).checkpoint_path
    assert (clock.naps, below(brought)) == ([1.0] * 3, [MANIFEST, "a", "b"])
    assert brought.startswith(str(scratch))
    carrier.finish()
    assert not os.path.exists(brought)


@pytest.mark.parametrize("lacks", [MANIFEST, "b"])
def test_a_checkpoint_that_does_not_come_whole_is_named_and_no_half_of_it_stays(
    make, storage, tmp_path, scratch, lacks
):
    source = published(tmp_path / "there", "checkpoint_000004", tmp_path, a="1", b="22")
    for file in {"a", "b", MANIFEST} - {lacks}:
        storage.upload_file(f"{source}/{file}", f"t/checkpoint_000004/{file}")
    carrier = make()
    with pytest.raises(StoreError) as caught:
        carrier.prepare(order(checkpoint_path=f"{DRIVER}/t/checkpoint_000004"))
    why = (
        "its file b is missing or of another size" if lacks == "b" else "cannot read exp/t/checkpoint_000004"
    )
    assert re.search(r"\bexp/t/checkpoint_000004, .* 120 s\b", str(caught.value))
    assert why in str(caught.value)
    carrier.finish()
    assert below(scratch) == [next(Path(scratch).iterdir()).name + "/.in_use"]


def test_where_the_drivers_directory_is_seen_only_what_is_not_there_is_fetched(
    make, remote, storage, tmp_path, scratch
):
    root = tmp_path / "driver"
    mine = published(root / "t", "checkpoint_000000", tmp_path, a="1")
    carrier = make(sees=True, root=str(root))
    told = order(trial_dir=root / "t", checkpoint_path=mine)
    assert carrier.prepare(told) == told
    carrier.keep(published(root / "t", "checkpoint_000001", tmp_path, a="2"))
    carrier.finish()
    assert (remote.written, below(scratch)) == ([], [])
    storage.upload_dir(mine, "o/checkpoint_000007")
    brought = carrier.prepare(told._replace(checkpoint_path=f"{root}/o/checkpoint_000007")).checkpoint_path
    assert Path(brought, "a").read_text() == "1"
    assert not (root / "o").exists()  # the driver would copy it back


def test_a_checkpoint_of_somebody_else_and_a_trial_elsewhere_are_left_alone(make):
    carrier = make()
    assert carrier.prepare(order(checkpoint_path="s3://other/c")).checkpoint_path == "s3://other/c"
    elsewhere = order(trial_dir="/other/t", checkpoint_path="/other/t/checkpoint_000000")
    assert carrier.prepare(elsewhere) == elsewhere


def test_a_storage_that_is_another_one_on_each_machine_is_refused(remote, storage, tmp_path):
    assert RemoteStorage("exp", remote, DRIVER).problem() == ""
    other = RemoteStorage("exp", Remote(tmp_path / "other"), DRIVER)
    assert re.search(r"\bexp\b.*\bdriver\b|\bdriver\b.*\bexp\b", other.problem())
    access = open_storage("/nobody/sees/this", other.pickled())
    assert (access.sees, access.transfer, access.problem) == (False, None, other.problem())
    assert (
        open_storage("/nobody/sees/this", RemoteStorage("exp", remote, DRIVER).pickled()).transfer is not None
    )
    garbage = open_storage("/nobody/sees/this", b"no pickle")
    assert (garbage.transfer, bool(garbage.problem)) == (None, True)
    assert garbage.problem != other.problem()
    assert storage.exists(MARKER)


def test_a_package_that_the_node_lacks_is_named():
    problem = RemoteStorage("nosuch://bucket/exp", None, DRIVER).problem()
    assert re.search(r"\bfsspec\b.*'nosuch'", problem)
