"""Places for files, and the copying to remote ones: incremental, retried, never in the way."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.builders import created, reported, started

from muster.base.clock import ManualClock, SystemClock
from muster.errors import ConfigError, StoreError
from muster.session.publish import MANIFEST
from muster.stores.experiment.store import STORE_NAME, SqliteTrialStore
from muster.stores.mirror import Mirror, MirrorInterval
from muster.stores.storage import MARKER, Storage
from muster.stores.uploads import Uploader


class Flaky(MemoryFileSystem):
    """The memory file system with a store of its own; fails for names while they are in `broken`."""

    cachable = False

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]
        self.broken, self.calls = set(), []
        self.gate = None

    def put_file(self, lpath, rpath, **options):
        self.calls.append(rpath)
        if self.gate is not None:
            self.gate.wait(10.0)
        if any(part in rpath for part in self.broken):
            raise ConnectionError("reset by peer")
        super().put_file(lpath, rpath, **options)

    def rm(self, path, **options):
        self.calls.append(f"rm {path}")
        if "rm" in self.broken:
            raise ConnectionError("no deletions today")
        super().rm(path, **options)

    def files(self):
        return sorted(name.removeprefix("/exp/") for name in self.find("/exp"))


@pytest.fixture(params=["local", "file-url", "memory", "own"])
def storage(request, tmp_path):
    if request.param == "own":
        return Storage("/exp", Flaky())
    if request.param == "memory":
        return Storage(f"memory://{tmp_path.name}/exp")
    return Storage(tmp_path / "exp" if request.param == "local" else f"file://{tmp_path}/exp")


def written(place, **files):
    for name, content in files.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return place


# Storage


def test_every_kind_of_storage_keeps_directories(storage, tmp_path):
    source = written(tmp_path / "source", a=b"1", deep__b=b"22")
    assert (storage.exists(), storage.listing(), storage.sizes("trial")) == (False, (), {})
    storage.upload_dir(source, "trial/one")
    storage.upload_file(source / "a", "top")
    assert (storage.exists("trial/one"), storage.exists("trial/two")) == (True, False)
    assert (storage.listing(), storage.listing("trial/one")) == (("top", "trial"), ("a", "deep"))
    assert storage.sizes("trial") == {"one/a": 1, "one/deep/b": 2}
    assert storage.below("trial").sizes("one") == {"a": 1, "deep/b": 2}
    assert storage.read("trial/one/deep/b") == b"22"
    storage.download_dir("trial/one", tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "b").read_bytes() == b"22"
    storage.delete_dir("trial/one")
    storage.delete_dir("trial/one")
    assert (storage.sizes("trial"), storage.exists("top")) == ({}, True)


def test_validation_leaves_the_marker(storage):
    storage.validate()
    storage.validate()
    assert storage.listing() == (MARKER,)


def test_a_marker_that_is_there_is_not_written_again():
    class Killed(Flaky):
        """Ends the program in the middle of a file, which is empty then."""

        def pipe_file(self, path, value, **options):
            super().pipe_file(path, b"", **options)
            raise KeyboardInterrupt

    files = Killed()
    files.store = (whole := Flaky()).store
    Storage("/exp", whole).validate(b"me")
    with pytest.raises(KeyboardInterrupt):
        Storage("/exp", files).validate(b"me")
    assert Storage("/exp", whole).read(MARKER) == b"me"
    Storage("/exp", whole).validate(b"me")
    assert Storage("/exp", whole).listing() == (MARKER,)


@pytest.mark.conformance("C-247")
def test_a_failed_download_leaves_no_target(storage, tmp_path):
    with pytest.raises(StoreError, match=r"/nothing: FileNotFoundError: "):
        storage.download_dir("nothing", tmp_path / "target")
    assert not (tmp_path / "target").exists()
    (tmp_path / "target").mkdir()
    with pytest.raises(StoreError):
        storage.download_dir("nothing", tmp_path / "target")
    assert (tmp_path / "target").exists()


def test_names_may_not_lead_outside_and_not_all_is_deleted(storage):
    with pytest.raises(StoreError, match=r"^'a/\.\./\.\.': "):
        storage.join("a/../..")
    with pytest.raises(StoreError, match=r"\bexp: .*\bdelete\b"):
        storage.delete_dir("")


def test_a_storage_is_a_value(tmp_path):
    assert Storage(tmp_path) == Storage(f"file://{tmp_path}/") == Storage(str(tmp_path))
    assert Storage("memory://a/") == Storage("memory://a") != Storage("memory://b")
    assert (Storage(tmp_path).path, Storage(tmp_path).is_local) == (tmp_path, True)
    assert Storage("memory://a/b").join("c", "", "d/e") == "memory://a/b/c/d/e"
    assert repr(Storage("memory://a")) == "Storage('memory://a')"
    with pytest.raises(StoreError, match=r"^memory://a: "):
        _ = Storage("memory://a").path


def test_relative_and_home_paths_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (Storage("results").uri, Storage("~/x").uri) == (f"{tmp_path}/results", f"{tmp_path}/x")


def test_an_unknown_protocol_says_what_to_install():
    with pytest.raises(ConfigError, match=r"storage_path.*'nowhere'"):
        Storage("nowhere://bucket").exists()


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=f"{tmp_path}.*/file/exp/"):
        Storage(tmp_path / "file" / "exp").validate()


# Mirror


@pytest.fixture
def remote():
    return Flaky()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def here(tmp_path):
    return written(tmp_path / "here", trial__result=b"1", trial__checkpoint_000000__model=b"m", top=b"t")


@pytest.fixture
def mirror(here, remote, clock):
    pace = MirrorInterval(again_s=5.0, store_s=10.0, retry_s=1.0, retry_max_s=4.0)
    return Mirror(here, Storage("/exp", remote), clock=clock, pace=pace)


ALL = ["top", "trial/checkpoint_000000/model", "trial/result"]


def test_the_first_pass_copies_everything_and_the_next_one_nothing(mirror, remote):
    assert (mirror.step(), remote.files(), mirror.copied_files) == (True, ALL, 3)
    mirror.changed("")
    assert (mirror.step(), mirror.step(everything=True), mirror.copied_files) == (True, True, 3)
    assert mirror.next_due() is None


@pytest.mark.conformance("C-247")
def test_only_what_changed_is_looked_at_and_only_what_differs_is_copied(mirror, remote, here):
    mirror.step()
    written(here, trial__new=b"n", other__file=b"o")
    remote.calls.clear()
    mirror.changed("trial")
    assert (mirror.step(), remote.calls) == (True, ["/exp/trial/new"])
    mirror.changed("other/file")
    assert (mirror.step(), remote.calls[1:]) == (True, ["/exp/other/file"])
    mirror.changed("vanished")
    assert (mirror.step(), len(remote.calls)) == (True, 2)


@pytest.mark.conformance("C-247")
def test_a_growing_file_is_copied_again_only_every_few_seconds(mirror, remote, here, clock):
    mirror.step()
    for second in range(1, 11):
        clock.advance(1.0)
        with open(here / "trial" / "result", "ab") as file:
            file.write(b"x")
        mirror.changed("trial")
        mirror.step()
        assert mirror.copied_files == 3 + second // 5
    assert len(remote.cat_file("/exp/trial/result")) == 11
    written(here, trial__result=b"the end")
    mirror.changed("trial")
    assert mirror.step() is False
    assert mirror.next_due() == 15.0
    assert mirror.step(everything=True) is True  # a flush does not wait
    assert remote.cat_file("/exp/trial/result") == b"the end"


@pytest.mark.conformance("C-247")
def test_a_failed_copy_is_tried_again_with_growing_waits_and_told(mirror, remote, clock):
    remote.broken.add("result")
    mirror.step()
    waits = []
    for _ in range(4):
        due = mirror.next_due()
        waits.append(due - clock.monotonic())
        mirror.step()  # not due: nothing is tried
        clock.advance(due - clock.monotonic())
        mirror.step()
    assert (waits, remote.calls.count("/exp/trial/result")) == ([1.0, 2.0, 4.0, 4.0], 5)
    problems = mirror.poll_problems()
    assert len(problems) == 5
    assert re.search(
        r" /exp/trial/result: ConnectionError: reset by peer \(failure 2; .* 2 s\)$", problems[1]
    )
    assert mirror.poll_problems() == ()
    remote.broken.clear()
    clock.advance(4.0)
    assert (mirror.step(), remote.files(), mirror.next_due()) == (True, ALL, None)


def test_the_store_goes_last_as_a_whole_file_and_not_ahead_of_its_checkpoints(mirror, remote, here, clock):
    with SqliteTrialStore(here) as store:
        store.append([created(), started()])
        remote.broken.add("model")
        assert mirror.step() is False
        assert remote.files() == ["top", "trial/result"]
        remote.broken.clear()
        clock.advance(5.0)
        assert mirror.step() is True
        assert remote.files() == [STORE_NAME, *ALL]
        assert remote.calls[-1] == f"/exp/{STORE_NAME}"
        store.append([reported()])
        mirror.changed("trial")
        assert mirror.step() is False  # the store was copied a moment ago
        clock.advance(10.0)
        assert mirror.step() is True
        expected = store.load()
    remote.get_file(f"/exp/{STORE_NAME}", str(here / "copy.sqlite"))
    with SqliteTrialStore(here / "copy.sqlite") as copied:
        assert copied.load() == expected


def test_no_store_goes_without_the_rows_that_left_it(mirror, remote, here, clock):
    """A file may have grown since it was copied, or after its trial was told of for the last time."""
    with SqliteTrialStore(here) as store:
        store.append([created()])
        assert mirror.step() is True
        clock.advance(9.0)
        written(here, trial__result=b"grown")
        mirror.changed("trial")
        mirror.step()
        clock.advance(2.0)
        written(here, trial__result=b"grown again", other__result=b"new")
        store.append([started()])
        mirror.changed(STORE_NAME)
        assert mirror.step() is True
        assert remote.cat_file("/exp/trial/result") == b"grown again"
        assert remote.cat_file("/exp/other/result") == b"new"
        assert remote.calls[-1] == f"/exp/{STORE_NAME}"


def test_a_store_waits_for_rows_that_cannot_be_copied(mirror, remote, here, clock):
    written(here, **{"trial__result.json": b"row"})
    remote.broken.add("result.json")
    with SqliteTrialStore(here) as store:
        store.append([created()])
        mirror.step()
        assert STORE_NAME not in remote.files()
        remote.broken.clear()
        clock.advance(5.0)
        assert mirror.step() is True
    assert STORE_NAME in remote.files()


def test_a_flush_copies_the_store_even_when_a_checkpoint_fails(mirror, remote, here):
    with SqliteTrialStore(here) as store:
        store.append([created()])
        remote.broken.add("model")
        assert mirror.step(everything=True) is False
    assert remote.files() == [STORE_NAME, "top", "trial/result"]


@pytest.mark.conformance("C-247")
def test_half_made_directories_and_the_stores_side_files_stay_here(mirror, remote, here):
    written(here, **{"trial__.checkpoint_000001.9.partial__model": b"", "experiment.sqlite-wal": b"w"})
    written(here, **{"experiment.sqlite.lock": b"", "trial__.checkpoint_000000.9.deleted__model": b""})
    assert (mirror.step(everything=True), remote.files()) == (True, ALL)


def test_what_was_deleted_here_is_deleted_there_once_the_store_is_up_to_date(mirror, remote, here, clock):
    with SqliteTrialStore(here) as store:
        store.append([created()])
        mirror.step()
        store.append([started()])
        mirror.discard("trial/checkpoint_000000")
        assert mirror.step() is False  # the store there still tells of it
        assert "trial/checkpoint_000000/model" in remote.files()
        clock.advance(10.0)
        remote.broken.add("rm")
        assert mirror.step() is False
        assert "trial/checkpoint_000000/model" in remote.files()
        assert "no deletions today" in mirror.poll_problems()[0]
        remote.broken.clear()
        (here / "trial" / "checkpoint_000000" / "model").unlink()
        clock.advance(1.0)
        assert mirror.step() is True
    assert remote.files() == [STORE_NAME, "top", "trial/result"]


def test_what_a_store_names_that_is_being_copied_stays_here_until_it_is_there(mirror, remote, here, clock):
    """A checkpoint that is made faster than it is copied would otherwise never be on the storage."""
    place, asked = here / "trial" / "checkpoint_000000", []

    def put_file(lpath, rpath, **options):
        if not asked:  # the first file; the store was copied before, and names the checkpoint
            asked.append(mirror.discard("trial/checkpoint_000000"))
        put(lpath, rpath, **options)

    put, remote.put_file = remote.put_file, put_file
    with SqliteTrialStore(here) as store:
        store.append([created()])
        mirror.step()
        assert (asked, remote.files(), place.exists()) == ([False], [STORE_NAME, *ALL], False)
        store.append([started()])
        clock.advance(10.0)
        assert mirror.step() is True
        assert remote.files() == [STORE_NAME, "top", "trial/result"]
        assert mirror.discard("trial/checkpoint_000001") is True  # nothing is being copied


# Uploader


@pytest.fixture
def uploader(here, remote):
    made = Uploader(
        Mirror(here, Storage("/exp", remote), clock=SystemClock(), pace=MirrorInterval(retry_s=0.01))
    )
    yield made
    made.close()


def test_a_flush_waits_until_everything_is_there(uploader, remote, here):
    assert (uploader.flush(10.0), remote.files()) == (True, ALL)
    written(here, trial__late=b"l")  # nobody said so: a flush looks at everything
    assert (uploader.close(10.0), remote.files()) == (True, [*ALL[:2], "trial/late", "trial/result"])
    assert uploader.close() is False  # there is nobody to flush any more, and that is not an error


@pytest.mark.conformance("C-247")
def test_the_caller_is_never_blocked_by_a_transfer_that_hangs(uploader, remote, here):
    remote.gate = threading.Event()
    written(here, trial__another=b"a")
    clock = SystemClock()
    began = clock.monotonic()
    for number in range(100):
        uploader.changed(f"trial/{number}")
        uploader.discard(f"old/{number}")
    assert uploader.poll_problems() == ()
    assert uploader.flush(0.05) is False
    assert clock.monotonic() - began < 2.0
    remote.gate.set()
    assert uploader.flush(10.0) is True


def test_a_flaky_storage_gets_everything_in_the_end_and_the_failures_are_told(uploader, remote, here):
    remote.broken.add("later")
    written(here, trial__later=b"l")
    assert uploader.flush(0.3) is False
    assert any("reset by peer" in line for line in uploader.poll_problems())
    remote.broken.clear()
    assert (uploader.flush(10.0), remote.files()) == (True, [*ALL[:2], "trial/later", "trial/result"])


@pytest.mark.slow
def test_a_flush_that_was_given_up_does_not_keep_hammering_the_storage(here, remote):
    remote.broken.add("result")
    pace = MirrorInterval(retry_s=60.0)
    uploader = Uploader(Mirror(here, Storage("/exp", remote), clock=SystemClock(), pace=pace))
    assert uploader.flush(0.3) is False
    SystemClock().sleep(0.15)
    tried = len(remote.calls)
    SystemClock().sleep(0.3)
    assert len(remote.calls) == tried
    uploader.close()


@pytest.mark.slow
def test_a_transfer_that_hangs_does_not_keep_the_program_alive(here):
    script = (
        "import sys, threading; from muster.base.clock import SystemClock\n"
        "from muster.stores.mirror import Mirror; from muster.stores.storage import Storage\n"
        "from muster.stores.uploads import Uploader\n"
        "Storage.upload_file = lambda *_: threading.Event().wait(100)\n"
        "up = Uploader(Mirror(sys.argv[1], Storage('memory://x'), clock=SystemClock())); up.changed('')\n"
        "print(up.close(0.05))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(here)], capture_output=True, text=True, check=True, timeout=20
    )
    assert run.stdout == "False\n"


def test_a_manifest_goes_after_its_files_and_not_without_them(mirror, remote, here, clock):
    names = ["checkpoint_000001/a", "checkpoint_000001/zz", f"checkpoint_000001/{MANIFEST}"]
    for name in names:
        place = here / "trial" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"1")
    remote.broken.add("zz")
    assert mirror.step() is False
    assert not any(MANIFEST in call for call in remote.calls)
    remote.broken.clear()
    clock.advance(2.0)
    assert (mirror.step(), remote.files()) == (True, sorted([*ALL, *(f"trial/{name}" for name in names)]))
    assert remote.calls[-1] == f"/exp/trial/checkpoint_000001/{MANIFEST}"


def test_a_log_that_a_node_made_longer_is_left_alone(remote, here, clock):
    mirror = Mirror(here, Storage("/exp", remote), clock=clock, shared=lambda name: name.endswith("result"))
    remote.makedirs("/exp/trial", exist_ok=True)
    remote.pipe_file("/exp/trial/result", b"longer")
    assert (mirror.step(), remote.cat_file("/exp/trial/result")) == (True, b"longer")
    (here / "trial/result").write_bytes(b"longer by far")
    mirror.changed("trial")
    clock.advance(10.0)
    assert (mirror.step(), remote.cat_file("/exp/trial/result")) == (True, b"longer by far")


def test_a_directory_that_was_never_here_is_deleted_there(mirror, remote):
    remote.makedirs("/exp/trial/checkpoint_000009", exist_ok=True)
    remote.pipe_file("/exp/trial/checkpoint_000009/model", b"made by a node")
    remote.pipe_file("/exp/trial/unknown", b"stays")
    mirror.discard("trial/checkpoint_000009")
    assert (mirror.step(), remote.files()) == (True, sorted([*ALL, "trial/unknown"]))


def test_the_size_of_a_file_is_told_and_of_none_nothing(storage, tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    storage.upload_file(tmp_path / "file", "a/b")
    assert (storage.size("a/b"), storage.size("a/c")) == (3, None)
