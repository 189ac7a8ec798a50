"""Copies of a real ledger file: whole, in order, told from damaged ones, and safe to continue from."""

from __future__ import annotations

import pytest
from tests.support.builders import NOW, launch, plan, record

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.plan import Terminate
from muster.cluster.states import InstanceState as S
from muster.errors import StoreError
from muster.stores.ledger.backup import DETAILS, LEAVING, LedgerBackups, copy_of, main, settled
from muster.stores.ledger.store import SqliteInstanceStore


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.db"
    with opened(path) as store:
        store.commit(0, plan(record("a"), actions=[launch("e-1")]))
    return path


def opened(path):
    return SqliteInstanceStore(path, clock=ManualClock(NOW))


def change(path, name):
    with opened(path) as store:
        store.commit(store.load().version, plan(record(name)))


def restored(backups, target):
    return backups.restore(target, ManualClock(NOW + 100), CountingIds())


def records(path):
    with opened(path) as store:
        return {name: one.state for name, one in store.load().instances.items()}


def test_a_name_says_cluster_generation_and_digest():
    name = "my.cluster.000000012.0123456789abcdef.ledger"
    copy = copy_of(name, "my.cluster")
    assert (copy.generation, copy.digest, copy.name) == (12, "0123456789abcdef", name)
    assert copy_of(name, "cluster") is None
    assert copy_of(f".{name}.44.partial", "my.cluster") is None


@pytest.mark.parametrize("kind", ["a path", "an fsspec URL"])
def test_a_new_head_starts_from_the_newest_copy(tmp_path, ledger, kind):
    place = tmp_path / "copies" if kind == "a path" else f"memory://{tmp_path.name}"
    backups = LedgerBackups(place, "c1", keep=2)
    for name in ("b", "c", "d"):
        backups.write(ledger)
        change(ledger, name)
    with opened(ledger):  # a monitor that runs is not disturbed
        newest = backups.write(ledger)
    assert [copy.generation for copy in backups.copies()] == [4, 3]
    found = restored(backups, tmp_path / "new.db")
    assert (found.copy, found.refused) == (newest, ())
    assert list(records(tmp_path / "new.db")) == ["a", "b", "c", "d"]
    assert sorted(path.name for path in tmp_path.glob("*new*")) == ["new.db", "new.db.lock"]


def test_what_has_not_changed_is_not_copied_again_and_other_clusters_are_left_alone(tmp_path, ledger):
    first, other = LedgerBackups(tmp_path / "copies", "c1"), LedgerBackups(tmp_path / "copies", "c2")
    assert first.write(ledger) == first.write(ledger)
    assert (len(first.copies()), other.copies(), restored(other, tmp_path / "new.db")) == (1, [], None)
    other.write(ledger)
    first.forget()
    assert (first.copies(), len(other.copies())) == ([], 1)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "another file"])
def test_a_damaged_copy_is_refused_in_a_sentence_and_the_one_before_is_used(tmp_path, ledger, damage):
    backups = LedgerBackups(tmp_path / "copies", "c1")
    older = backups.write(ledger)
    change(ledger, "b")
    newest = backups.write(ledger)
    file = tmp_path / "copies" / newest.name
    whole = file.read_bytes()
    content = {
        "cut": whole[:-100],
        "changed": whole[:5000] + b"\xff" * 100 + whole[5100:],
        "empty": b"",
        "another file": b"no ledger",
    }
    file.write_bytes(content[damage])
    found = restored(backups, tmp_path / "new.db")
    assert found.copy == older
    (sentence,) = found.refused
    assert sentence.startswith(f"{file} ")
    assert " damaged, " in sentence
    assert list(records(tmp_path / "new.db")) == ["a"]


def test_a_file_with_the_right_digest_that_is_no_ledger_is_refused(tmp_path, ledger):
    backups = LedgerBackups(tmp_path / "copies", "c1")
    strange = tmp_path / "strange"
    strange.write_bytes(b"no ledger at all")
    backups.add(strange)
    with pytest.raises(StoreError, match="c1"):
        restored(backups, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_a_ledger_is_never_overwritten(tmp_path, ledger):
    backups = LedgerBackups(tmp_path / "copies", "c1")
    backups.write(ledger)
    with pytest.raises(StoreError, match=r"ledger\.db: exists"):
        restored(backups, ledger)


def test_only_launches_are_repeated_and_machines_on_their_way_out_are_found_by_their_tags(tmp_path, ledger):
    end = Terminate(request_id="t-1", cloud_ids=("m-1",), instance_ids=("x",))
    with opened(ledger) as store:
        leaving = record("x", S.ALLOCATED, S.RAY_RUNNING, S.TERMINATING, cloud_id="m-1")
        store.commit(1, plan(leaving, actions=[end]))
    backups = LedgerBackups(tmp_path / "copies", "c1")
    backups.write(ledger)
    restored(backups, tmp_path / "new.db")
    with opened(tmp_path / "new.db") as store:
        found = store.load()
        (ended,) = store.history.find(ids=["x"])
    assert (list(found.instances), found.outbox) == (["a"], (launch("e-1"),))
    assert (ended.state, ended.details) == (S.TERMINATED, DETAILS)


def test_records_that_serve_or_come_up_are_kept_as_they_are(tmp_path, ledger):
    with opened(ledger) as store:
        assert settled(store.load(), "t", NOW).writes == ()
    assert not LEAVING & {S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_INSTALLING, S.RAY_RUNNING}


def test_the_commands_on_a_head_copy_and_forget(tmp_path, ledger, capsys):
    assert main(["copy", str(ledger), str(tmp_path / "draft")]) == 0
    LedgerBackups(tmp_path / "copies", "c1").add(tmp_path / "draft")
    assert list(records(tmp_path / "draft")) == ["a"]
    assert main(["forget", str(tmp_path / "copies"), "c1"]) == 0
    assert LedgerBackups(tmp_path / "copies", "c1").copies() == []
    assert main(["copy", str(tmp_path / "none"), str(tmp_path / "draft")]) == 2
    assert f"{tmp_path / 'none'}: " in capsys.readouterr().err
