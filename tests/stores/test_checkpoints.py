"""Checkpoint directories: whole or absent, checked, and deleted only when that is safe."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import fsspec
import pytest
from tests.mistakes.views import assert_line
from tests.support.builders import reported

from muster.base.clock import SystemClock
from muster.errors import StoreError
from muster.session import publish as publishing
from muster.session.publish import checkpoint_name
from muster.stores.checkpoints import (
    MANIFEST,
    CheckpointStore,
    DeletionQueue,
    delete_directory,
    publish,
    sweep,
)
from muster.stores.experiment.store import SqliteTrialStore
from muster.stores.storage import Storage
from muster.trials.checkpoints import deletable, register
from muster.trials.events import CheckpointToDelete
from muster.trials.model import CheckpointPolicy, CheckpointRef, Trial


def files_in(place):
    found = {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
    found.pop(MANIFEST, None)
    return found


@pytest.fixture
def source(tmp_path):
    place = tmp_path / "source"
    (place / "deep").mkdir(parents=True)
    (place / "model.bin").write_bytes(b"m" * 1000)
    (place / "deep" / "state").write_bytes(b"")
    return place


CONTENT = {"model.bin": b"m" * 1000, "deep/state": b""}


def made(root, index, source):
    publish(source, root / "trial" / checkpoint_name(index))
    return CheckpointRef(path=str(root / "trial" / checkpoint_name(index)), index=index)


def test_a_published_checkpoint_holds_what_the_source_held_and_nothing_else_is_left(tmp_path, source):
    ref = made(tmp_path, 7, source)
    assert ref.path.endswith("/trial/checkpoint_000007")
    assert files_in(tmp_path / "trial" / "checkpoint_000007") == CONTENT
    assert os.listdir(tmp_path / "trial") == ["checkpoint_000007"]
    assert files_in(source) == CONTENT
    assert CheckpointStore(Storage(tmp_path)).problem(ref) is None


def test_publishing_again_replaces_the_whole_directory(tmp_path, source):
    made(tmp_path, 1, source)
    (source / "model.bin").unlink()
    (source / "other").write_bytes(b"o")
    ref = made(tmp_path, 1, source)
    assert files_in(tmp_path / "trial" / "checkpoint_000001") == {"deep/state": b"", "other": b"o"}
    assert os.listdir(tmp_path / "trial") == ["checkpoint_000001"]
    assert CheckpointStore(Storage(tmp_path)).problem(ref) is None


def test_a_failed_publish_leaves_the_old_one_and_no_rest(tmp_path, source, monkeypatch):
    ref = made(tmp_path, 1, source)
    monkeypatch.setattr(publishing, "FULL_DISK_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match=r"checkpoint_000001: \[Errno 28\]"):
        publish(source, ref.path)
    assert os.listdir(tmp_path / "trial") == ["checkpoint_000001"]
    assert CheckpointStore(Storage(tmp_path)).problem(ref) is None
    with pytest.raises(StoreError, match=r"checkpoint_000002: \[Errno 2\]"):
        publish(tmp_path / "missing", tmp_path / "trial" / "checkpoint_000002")
    assert os.listdir(tmp_path / "trial") == ["checkpoint_000001"]


def test_a_killed_publisher_leaves_nothing_that_looks_published(tmp_path, source):
    script = (
        "import os, signal, sys; import muster.stores.checkpoints as c, muster.session.publish as p\n"
        "p._sync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.publish(sys.argv[1], sys.argv[2])\n"
    )
    target = tmp_path / "trial" / "checkpoint_000001"
    run = subprocess.run([sys.executable, "-c", script, str(source), str(target)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert CheckpointStore(Storage(tmp_path)).listed("trial") == ()
    assert (len(os.listdir(tmp_path / "trial")), sweep(tmp_path / "trial")) == (1, 1)
    assert os.listdir(tmp_path / "trial") == []


def test_drafts_of_killed_processes_are_swept_and_the_users_files_are_not(tmp_path):
    for name in (".params.json.27564.partial", "mine.partial", ".mine.partial", ".x.9.deleted.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".train_1.27564.deleted").mkdir()
    assert sweep(tmp_path) == 2
    assert sorted(os.listdir(tmp_path)) == [".mine.partial", ".x.9.deleted.txt", "mine.partial"]


def test_published_checkpoints_are_listed_by_number(tmp_path, source):
    for index in (10, 2, 1_000_000):
        made(tmp_path, index, source)
    (tmp_path / "trial" / "checkpoint_tmp").mkdir()
    root = f"{tmp_path}/trial"
    expected = (
        (2, f"{root}/checkpoint_000002"),
        (10, f"{root}/checkpoint_000010"),
        (1_000_000, f"{root}/checkpoint_1000000"),
    )
    assert CheckpointStore(Storage(tmp_path)).listed("trial") == expected
    assert CheckpointStore(Storage(tmp_path)).listed("nobody") == ()


def _truncate(place):
    (place / "model.bin").write_bytes(b"m" * 10)


def _lose_file(place):
    (place / "deep" / "state").unlink()


def _spoil_manifest(place):
    (place / MANIFEST).write_bytes(b'{"files": 3}')


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (shutil.rmtree, "it does not exist"),
        (_truncate, "its file model.bin has 10 bytes instead of 1000"),
        (_lose_file, "its file deep/state is missing"),
        (_spoil_manifest, "it cannot be read: 'int' object has no attribute 'items'"),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_next_older(tmp_path, source, caplog, damage, why):
    refs = [made(tmp_path, index, source) for index in (0, 1, 2)]
    store = CheckpointStore(Storage(tmp_path))
    assert store.newest_usable(refs) == refs[2]
    damage(tmp_path / "trial" / "checkpoint_000002")
    with caplog.at_level(logging.WARNING):
        assert store.newest_usable([refs[2], refs[0], refs[1]]) == refs[1]
    (record,) = caplog.records
    assert record.getMessage().endswith(f" path={refs[2].path} why={why}")


def test_without_a_usable_checkpoint_there_is_none(tmp_path):
    store = CheckpointStore(Storage(tmp_path))
    assert store.newest_usable([]) is None
    assert store.newest_usable([CheckpointRef(path=f"{tmp_path}/gone", index=0)]) is None


def test_a_directory_that_somebody_else_made_is_usable_because_it_is_there(tmp_path, source):
    store = CheckpointStore(Storage(tmp_path / "elsewhere"))
    assert store.problem(CheckpointRef(path=str(source), index=0)) is None


def test_fetching_gives_the_users_files_only(tmp_path, source):
    ref = made(tmp_path, 1, source)
    CheckpointStore(Storage(tmp_path)).fetch(ref, tmp_path / "here")
    assert sorted(p.name for p in (tmp_path / "here").rglob("*")) == ["deep", "model.bin", "state"]
    with pytest.raises(StoreError):
        CheckpointStore(Storage(tmp_path)).fetch(CheckpointRef(path=f"{tmp_path}/x", index=1), tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_remote_checkpoints_are_checked_fetched_and_deleted_alike(tmp_path, source):
    storage = Storage("memory://muster-checkpoints/exp")
    store = CheckpointStore(storage)
    made(tmp_path, 1, source)
    storage.upload_dir(tmp_path / "trial" / "checkpoint_000001", "trial/checkpoint_000001")
    ref = CheckpointRef(path="memory://muster-checkpoints/exp/trial/checkpoint_000001", index=1)
    assert (store.problem(ref), store.listed("trial")) == (None, ((1, ref.path),))
    store.fetch(ref, tmp_path / "here")
    assert files_in(tmp_path / "here") == CONTENT
    fsspec.filesystem("memory").pipe_file("/muster-checkpoints/exp/trial/checkpoint_000001/model.bin", b"m")
    assert re.findall(r"model\.bin|\d+", store.problem(ref)) == ["model.bin", "1", "1000"]
    store.delete(ref)
    store.delete(ref)
    assert (store.problem(ref), store.listed("trial")) == ("it does not exist", ())


def test_deleting_is_harmless_when_repeated(tmp_path, source):
    ref = made(tmp_path, 1, source)
    CheckpointStore(Storage(tmp_path)).delete(ref)
    delete_directory(tmp_path / "trial" / "checkpoint_000001")
    assert os.listdir(tmp_path / "trial") == []


# When deletion is safe


def queue_of(delete, sync=lambda: None):
    return DeletionQueue(delete, sync, clock=SystemClock())


def refs_of(*numbers):
    return [CheckpointRef(path=f"/x/{number}", index=number) for number in numbers]


@pytest.mark.conformance("C-009")
def test_nothing_is_deleted_before_its_fact_is_durable_or_while_it_is_used():
    gone = []
    queue = queue_of(lambda ref: gone.append(ref.index))
    after = {1: 5, 2: 5, 3: 6}
    waiting = [CheckpointToDelete(ref=ref, after=after[ref.index]) for ref in refs_of(1, 2, 3)]
    for durable, in_use, expected in ((4, set(), []), (5, {"/x/2"}, [1]), (6, set(), [1, 2, 3])):
        ready, waiting = deletable(waiting, durable, in_use)
        queue.discard(ready)
        assert (queue.drain(5.0), gone) == (True, expected)
    assert queue.close(5.0) is True


def test_the_store_is_flushed_before_each_round_of_deletions():
    steps = []
    queue = queue_of(lambda ref: steps.append(ref.index), lambda: steps.append("sync"))
    queue.discard(refs_of(1, 2))
    assert (queue.close(5.0), steps) == (True, ["sync", 1, 2])


def test_what_cannot_be_flushed_is_kept(caplog):
    def refuse():
        raise OSError("disk gone")

    gone = []
    queue = queue_of(gone.append, refuse)
    queue.discard(refs_of(1))
    assert (queue.close(5.0), gone) == (True, [])
    assert " count=1 why=disk gone" in caplog.text


def test_a_deletion_that_fails_is_logged_and_the_others_go_on(caplog):
    gone = []

    def delete(ref):
        if ref.index == 1:
            raise StoreError("no permission")
        gone.append(ref.index)

    queue = queue_of(delete)
    queue.discard(refs_of(1, 2))
    assert (queue.close(5.0), gone) == (True, [2])
    assert " path=/x/1 why=no permission" in caplog.text


def test_a_deletion_that_hangs_blocks_nobody():
    release = threading.Event()
    queue = queue_of(lambda _: release.wait(5.0))
    queue.discard(refs_of(1, 2))
    assert queue.drain(0.01) is False
    release.set()
    assert queue.close(5.0) is True


def test_retention_store_and_queue_together_keep_what_a_restore_needs(tmp_path, source):
    policy = CheckpointPolicy(num_to_keep=2, score_attribute="score")
    trial = Trial("t", trial_id="t", checkpoint_policy=policy)
    checkpoints = CheckpointStore(Storage(tmp_path))
    with SqliteTrialStore(tmp_path) as store:
        queue = queue_of(checkpoints.delete, store.sync)
        for index, score in enumerate((0, 2, 4, 1, 3, 0)):
            ref = made(tmp_path, index, source)
            ref = CheckpointRef(path=ref.path, index=index, metrics={"score": score})
            dropped = [
                CheckpointToDelete(ref=each, after=store.appended + 1) for each in register(trial, ref)
            ]
            assert deletable(dropped, store.appended)[0] == ()  # the fact is not durable yet
            store.append([reported("t", index + 1, ref)])
            queue.discard(deletable(dropped, store.appended)[0])
        assert queue.close(5.0) is True
        kept = {index for index, _ in checkpoints.listed("trial")}
        assert kept == {2, 4, 5} == {ref.index for ref in trial.checkpoints}
        again = Trial("t", trial_id="t", checkpoint_policy=policy)
        for fact in store.load().facts:
            register(again, fact.checkpoint)
    assert again.checkpoints == trial.checkpoints
    assert checkpoints.newest_usable(again.checkpoints) == trial.newest


def test_checkpoints_that_are_only_elsewhere_are_judged_there_and_brought_here(tmp_path, source):
    there = Storage(f"memory://{tmp_path.name}/exp")
    store = CheckpointStore(Storage(tmp_path / "here"), there)
    whole = made(tmp_path / "made", 1, source)
    there.upload_dir(whole.path, "trial/checkpoint_000001")
    there.upload_dir(source, "trial/checkpoint_000002")  # its manifest did not get there
    refs = [
        CheckpointRef(path=f"{tmp_path}/here/trial/checkpoint_00000{index}", index=index)
        for index in range(1, 4)
    ]
    whole_problem, partial, missing = map(store.problem, refs)
    assert whole_problem is None
    assert_line("stores", "checkpoint without its manifest", partial)
    assert_line("stores", "checkpoint missing", missing)
    assert store.newest_usable(refs) == refs[0]
    store.bring_here(refs[0])
    assert files_in(tmp_path / "here/trial/checkpoint_000001") == CONTENT
    assert os.listdir(tmp_path / "here/trial") == ["checkpoint_000001"]
    assert CheckpointStore(Storage(tmp_path / "here")).problem(refs[0]) is None
    with pytest.raises(StoreError, match="checkpoint_000003"):
        store.bring_here(refs[2])
    assert os.listdir(tmp_path / "here/trial") == ["checkpoint_000001"]


def test_a_storage_that_does_not_answer_costs_no_trial_its_progress(tmp_path, caplog):
    class Silent(fsspec.AbstractFileSystem):
        def exists(self, path, **options):
            raise ConnectionError("no route to host")

    store = CheckpointStore(Storage(tmp_path), Storage("exp", Silent()))
    ref = CheckpointRef(path=f"{tmp_path}/trial/checkpoint_000001", index=1)
    with caplog.at_level(logging.WARNING):
        assert store.newest_usable([ref]) == ref
    (record,) = caplog.records
    assert "checkpoint_000001" in record.getMessage()
