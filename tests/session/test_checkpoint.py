from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fsspec
import pytest

from muster.session import publish as publishing
from muster.session.checkpoint import Checkpoint, only_one
from muster.session.publish import MANIFEST, checkpoint_name, publish_copy, publish_staged


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "source"
    (made / "sub").mkdir(parents=True)
    (made / "a.txt").write_text("one")
    (made / "sub" / "b.txt").write_text("two")
    return made


@pytest.fixture
def remote():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/bucket/cp/a.txt", b"one")
    filesystem.pipe_file("/bucket/cp/sub/b.txt", b"two")
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def content(path):
    return {
        os.path.relpath(os.path.join(at, name), path): Path(at, name).read_text()
        for at, _, names in os.walk(path)
        for name in names
        if name != MANIFEST
    }


BOTH = {"a.txt": "one", os.path.join("sub", "b.txt"): "two"}


def test_a_local_checkpoint_is_used_where_it_is(folder):
    checkpoint = Checkpoint.from_directory(folder)
    with checkpoint.as_directory() as path:
        assert path == str(folder)
    assert content(folder) == BOTH


def test_to_directory_copies(folder, tmp_path):
    target = Checkpoint(folder).to_directory(tmp_path / "copy")
    assert (target, content(target)) == (str(tmp_path / "copy"), BOTH)
    assert sorted(os.listdir(tmp_path)) == ["copy", "source"]


def test_two_callers_share_one_temporary_copy_even_after_a_pickle(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    checkpoint = Checkpoint(folder)
    first, second = checkpoint.to_directory(), pickle.loads(pickle.dumps(checkpoint)).to_directory()
    assert first == second
    assert os.path.basename(first).startswith("checkpoint_tmp_")
    assert content(first) == BOTH


@contextmanager
def entering(lock_file: Path) -> Iterator[threading.Event]:
    """Enter in a thread; yield an event that is set when the thread is in, and then let it leave."""
    is_in, may_leave = threading.Event(), threading.Event()

    def enter() -> None:
        with only_one(str(lock_file), removes=True):
            is_in.set()
            may_leave.wait(10)

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        yield is_in
    finally:
        may_leave.set()
        thread.join()


def test_one_who_waited_for_a_lock_that_was_removed_keeps_the_next_out(tmp_path):
    """It would hold a file that nobody finds any more, next to the one who created another."""
    lock = tmp_path / "copy.lock"
    with entering(lock) as first:
        assert first.wait(10)
        waiting = ExitStack()
        second = waiting.enter_context(entering(lock))
        assert not second.wait(0.3)
    with waiting:
        assert second.wait(10)
        with entering(lock) as third:
            assert not third.wait(0.3)
            waiting.close()
            assert third.wait(10)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_copy_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Checkpoint(tmp_path / "missing").to_directory(tmp_path / "copy")
    assert os.listdir(tmp_path) == []


def test_a_remote_checkpoint_is_downloaded_for_as_long_as_it_is_read(remote, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    checkpoint = Checkpoint("/bucket/cp", filesystem=remote)
    with checkpoint.as_directory() as outer:
        assert content(outer) == BOTH
    assert os.listdir(tmp_path) == []


def test_a_url_finds_its_filesystem(remote):
    checkpoint = Checkpoint("memory://bucket/cp")
    assert (checkpoint.path, repr(checkpoint)) == (
        "/bucket/cp",
        "Checkpoint(filesystem=memory, path=/bucket/cp)",
    )
    assert checkpoint == Checkpoint("/bucket/cp", filesystem=remote)
    assert checkpoint != Checkpoint("/bucket/cp")


def test_metadata_is_kept_in_the_directory(folder, remote):
    for checkpoint in (Checkpoint(folder), Checkpoint("/bucket/cp", filesystem=remote)):
        assert checkpoint.get_metadata() == {}
        checkpoint.set_metadata({"a": 1})
        checkpoint.update_metadata({"b": [2]})
        assert checkpoint.get_metadata() == {"a": 1, "b": [2]}
    assert (folder / ".metadata.json").exists()


def test_removed_names_explain_themselves(folder, monkeypatch):
    monkeypatch.setenv("MUSTER_OLDER_API", "0")
    with pytest.raises(AttributeError, match="from_dict"):
        Checkpoint.from_dict({})
    with pytest.raises(AttributeError, match="to_dict"):
        Checkpoint(folder).to_dict()
    with pytest.raises(AttributeError, match="nonsense"):
        Checkpoint(folder).nonsense()


def test_a_checkpoint_is_no_path(folder, monkeypatch):
    monkeypatch.setenv("MUSTER_OLDER_API", "0")
    with pytest.raises(TypeError, match=r"checkpoint\.as_directory\(\)"):
        os.fspath(Checkpoint(folder))
    assert repr(Checkpoint(folder)) == f"Checkpoint(filesystem=local, path={folder})"


def test_names_of_older_versions_work_and_warn(folder):
    with pytest.warns(DeprecationWarning, match="from_directory"):
        made = Checkpoint.from_dict({"step": 3})
    with pytest.warns(DeprecationWarning, match="as_directory"):
        assert made.to_dict() == {"step": 3}
    for name in ("value", "dir_or_data", "local_path", "uri"):
        with pytest.warns(DeprecationWarning, match=name):
            assert getattr(Checkpoint(folder), name) == str(folder)
    with pytest.warns(DeprecationWarning):
        assert os.fspath(Checkpoint(folder)) == str(folder)


def test_publishing_leaves_source_and_nothing_else(folder, tmp_path):
    trial = tmp_path / "trial"
    trial.mkdir()
    target = publish_copy(str(folder), str(trial), checkpoint_name(3))
    assert target == str(trial / "checkpoint_000003")
    assert (content(target), content(folder), os.listdir(trial)) == (BOTH, BOTH, ["checkpoint_000003"])


def test_publishing_over_a_forgotten_one_replaces_it(folder, tmp_path):
    trial = tmp_path / "trial"
    (trial / "checkpoint_000000").mkdir(parents=True)
    (trial / "checkpoint_000000" / "old").write_text("old")
    publish_copy(str(folder), str(trial), "checkpoint_000000")
    assert (content(trial / "checkpoint_000000"), os.listdir(trial)) == (BOTH, ["checkpoint_000000"])


def test_a_failed_publish_leaves_nothing(folder, tmp_path, monkeypatch):
    trial = tmp_path / "trial"
    trial.mkdir()

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "FULL_DISK_S", 0.0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        publish_copy(str(folder), str(trial), "checkpoint_000000")
    assert os.listdir(trial) == []


def test_a_staged_directory_gets_its_name(folder, tmp_path):
    trial = tmp_path / "trial"
    trial.mkdir()
    os.rename(folder, trial / ".partial")
    target = publish_staged(str(trial / ".partial"), str(trial), "checkpoint_000000")
    assert content(target) == BOTH
    assert json.loads(Path(target, MANIFEST).read_text()) == {"files": {"a.txt": 3, "sub/b.txt": 3}}
