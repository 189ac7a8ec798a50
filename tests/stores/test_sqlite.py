"""Opening, locking and refusing files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from tests.support.builders import NOW, launch, plan, record

from muster.base.clock import ManualClock
from muster.errors import LedgerCorrupt, LedgerLocked, StoreError
from muster.stores.ledger.history import open_history
from muster.stores.ledger.store import SqliteInstanceStore
from muster.stores.sqlite import Database, Schema


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def opened(path, **options):
    return SqliteInstanceStore(path, clock=ManualClock(NOW), **{"wait_s": 0.05, **options})


def filled(path, count=1):
    with opened(path) as store:
        store.commit(0, plan(*(record(f"a-{k}") for k in range(count))))
    return path


def changed_by_hand(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_commits_are_in_wal_mode_and_reach_the_disk_before_they_return(path):
    with opened(path) as store:
        database = store._database
        assert database.execute("PRAGMA journal_mode") == [("wal",)]
        assert database.execute("PRAGMA synchronous") == [(2,)]  # FULL
        store.commit(0, plan(actions=[launch("e-1")]))
        store.handed_over(["e-1"])
        assert database.execute("PRAGMA synchronous") == [(2,)]


def test_a_second_writer_is_told_who_holds_the_file_and_what_to_do(path):
    with (
        opened(path),
        pytest.raises(LedgerLocked, match=f"{path}.*{os.getpid()}"),
    ):
        opened(path)
    opened(path).close()


def test_a_link_to_a_ledger_is_the_same_ledger(path, tmp_path):
    link = tmp_path / "link.db"
    with opened(path):
        link.symlink_to(path)
        with pytest.raises(LedgerLocked):
            opened(link)


def test_the_wait_for_a_lock_is_bounded(path):
    clock = ManualClock(0.0)
    with opened(path), pytest.raises(LedgerLocked):
        SqliteInstanceStore(path, clock=clock, wait_s=3.0)
    assert clock.now() == pytest.approx(3.0, abs=0.1)


def test_readers_work_while_the_writer_runs_and_see_whole_commits(path):
    with opened(path) as store, open_history(path) as reader:
        store.commit(0, plan(record("a")))
        assert (reader.version(), [r.instance_id for r in reader.find()]) == (1, ["a"])
        with store._database.transaction():
            store._database.execute("UPDATE ledger SET version = 7")
            assert reader.version() == 1


def test_readers_cannot_write(path):
    with opened(path), open_history(path) as reader, pytest.raises(StoreError, match="readonly"):
        reader._database.execute("UPDATE ledger SET version = 7")


def test_a_closed_ledger_can_be_read_where_nothing_may_be_written(path, tmp_path):
    filled(path)
    tmp_path.chmod(0o555)
    try:
        with open_history(path) as reader:
            assert reader.version() == 1
    finally:
        tmp_path.chmod(0o755)


def test_a_foreign_write_lock_is_waited_for_a_bounded_time(path):
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerLocked, match=r"ledger\.db: .*\bsqlite3\b"):
            store.commit(0, plan(record("a")))
        shell.execute("ROLLBACK")
        assert (store.load().version, store.commit(0, plan(record("a")))) == (0, 1)


def test_what_is_not_a_database_is_named_and_left_alone(path):
    path.write_bytes(b"these are my notes, not a ledger\n" * 100)
    for attempt in (opened, open_history):
        with pytest.raises(LedgerCorrupt, match=f"{path}"):
            attempt(path)
    assert path.read_bytes() == b"these are my notes, not a ledger\n" * 100


def test_somebody_elses_database_is_named_and_left_alone(path):
    changed_by_hand(path, "CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    for attempt in (opened, open_history):
        with pytest.raises(LedgerCorrupt, match=f"{path}"):
            attempt(path)
    assert path.read_bytes() == before


def test_a_truncated_ledger_is_refused(path):
    filled(path, count=200)
    size = path.stat().st_size
    for keep in (size // 2, 5000, 100):
        os.truncate(path, keep)
        with pytest.raises(LedgerCorrupt, match=f"{path}: damaged"):
            opened(path)


def test_a_ledger_with_overwritten_pages_is_refused(path):
    filled(path, count=200)
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(1) * 40_000)
    with pytest.raises(LedgerCorrupt, match=f"{path}: damaged"):
        opened(path)


def test_an_empty_file_becomes_a_ledger(path):
    path.touch()
    with pytest.raises(LedgerCorrupt, match="nothing was written"):
        open_history(path)
    with opened(path) as store:
        assert store.commit(0, plan(record("a"))) == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE schema_version SET version = 99", "schema version 99, this muster knows up to 1.*upgrade"),
        ("UPDATE schema_version SET version = 0", "no readable schema version"),
        ("DELETE FROM schema_version", "no readable schema version"),
        ("DROP TABLE schema_version", "no such table"),
        ("DELETE FROM ledger", "its version is unreadable"),
        ("UPDATE ledger SET version = 'many'", "its version is unreadable"),
        ("DROP TABLE instances", "no such table"),
    ],
)
def test_a_ledger_of_another_make_is_refused_with_its_name(path, statement, message):
    changed_by_hand(filled(path), statement)
    with pytest.raises(LedgerCorrupt, match=f"(?s){path}: .*{message}"):
        opened(path)


def test_files_that_cannot_be_made_or_found_are_named(tmp_path):
    with pytest.raises(StoreError, match=f"{tmp_path}.*/nowhere"):
        opened(tmp_path / "nowhere" / "ledger.db")
    with pytest.raises(StoreError, match=r"^[^ ]*/ledger\.db: .*\?$"):
        open_history(tmp_path / "ledger.db")


def test_a_full_disk_is_named_and_leaves_no_half_of_a_batch(path):
    with opened(path) as store:
        store.commit(0, plan(record("a")))
        pages = store._database.execute("PRAGMA page_count")[0][0]
        store._database.execute(f"PRAGMA max_page_count = {pages + 5}")
        many = plan(*(record(f"b-{k}") for k in range(500)), actions=[launch("e-1")])
        with pytest.raises(StoreError, match=f"{path}"):
            store.commit(1, many)
        ledger = store.load()
        assert (ledger.version, list(ledger.instances), ledger.outbox) == (1, ["a"], ())
        store._database.execute("PRAGMA max_page_count = 1000000")
        assert store.commit(1, many) == 2
        assert len(store.load().instances) == 501


def test_steps_of_a_schema_run_once_each_and_all_or_nothing(path):
    def first(database):
        database.execute("CREATE TABLE one (x)")

    def second(database):
        database.execute("CREATE TABLE two (x)")

    def broken(database):
        database.execute("CREATE TABLE three (x)")
        raise RuntimeError("power")

    def open_with(*steps):
        return Database.open(path, Schema("toy", 77, steps), clock=ManualClock(), wait_s=0.05)

    def tables(database):
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return [name for (name,) in rows]

    with open_with(first) as database:
        assert tables(database) == ["one", "schema_version"]
    with pytest.raises(RuntimeError):
        open_with(first, second, broken)
    with open_with(first, second) as database:
        assert tables(database) == ["one", "schema_version", "two"]
        assert database.execute("SELECT version FROM schema_version") == [(2,)]
