"""What only a file can show: damage, other writers, size."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace
from tests.support.builders import NOW, launch, moved, plan, record

from muster.base import codec
from muster.base.clock import ManualClock
from muster.base.ids import InstanceId
from muster.cluster.model import Offer
from muster.cluster.snapshot import Memory, Quarantined, TypeHealth
from muster.cluster.states import InstanceState as S
from muster.errors import StoreError, VersionConflict
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def opened(path, **options):
    return SqliteInstanceStore(path, clock=ManualClock(NOW), **{"wait_s": 0.05, **options})


def changed_by_hand(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "edit",
    [
        'record = \'{"v": 1, "d": {"instance_id": 3}}\'',
        "record = 'not json'",
        "record = ''",
        "record = x'ff00fe'",
        "record = replace(record, '\"v\":1', '\"v\":9')",
        "record = replace(record, '\"state\":1', '\"state\":99')",
        "record = replace(record, '\"state\":1', '\"state\":0')",
        "record = replace(record, '\"state\":1', '\"state\":10')",
        "record = replace(record, '\"b\"', '\"somebody-else\"')",
    ],
)
def test_one_unreadable_record_is_set_aside_and_the_rest_is_loaded(path, edit):
    with opened(path) as store:
        store.commit(0, plan(record("a"), record("b"), record("c"), actions=[launch("e-1")]))
    changed_by_hand(path, f"UPDATE instances SET {edit} WHERE instance_id = 'b'")
    with opened(path) as store:
        ledger = store.load()
        assert (ledger.version, list(ledger.instances), ledger.outbox) == (1, ["a", "c"], (launch("e-1"),))
        (damaged,) = store.damaged()
        assert (damaged.source, bool(damaged.message)) == ("record b", True)
        kept = store._database.execute("SELECT length(content), found_at FROM damaged")
        assert (len(kept), kept[0][1]) == (1, NOW)
        assert store.commit(1, plan(record("d"))) == 2
    with opened(path) as store:
        assert (store.damaged(), list(store.load().instances)) == ((damaged,), ["a", "c", "d"])
        assert store.load().damaged == (damaged,)  # the observer reports it every tick


def test_unreadable_effects_memory_and_failures_are_set_aside_too(path):
    failed = record("f", S.QUEUED, S.REQUESTED, S.ALLOCATION_FAILED)
    with opened(path) as store:
        actions = [launch("e-1"), launch("e-2")]
        store.commit(0, plan(record("a"), failed, actions=actions, memory=Memory(spent=4.0)))
    changed_by_hand(
        path,
        "UPDATE outbox SET action = '{' WHERE request_id = 'e-1'",
        "UPDATE memory SET value = 'null'",
        "UPDATE instances SET record = '[]' WHERE instance_id = 'f'",
    )
    with opened(path) as store:
        ledger = store.load()
        assert (list(ledger.instances), ledger.outbox) == (["a"], (launch("e-2"),))
        assert (ledger.memory, ledger.recent_failures) == (Memory(), ())
        assert sorted(each.source for each in store.damaged()) == ["effect e-1", "memory", "record f"]
        assert all(isinstance(each, Quarantined) for each in store.damaged())


def test_a_failed_set_up_is_a_recent_failure_while_its_machine_ends_and_after(path):
    steps = (S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_INSTALLING, S.RAY_INSTALL_FAILED, S.TERMINATING)
    with opened(path) as store:
        store.commit(0, plan(record("a", *steps, cloud_id="c-a"), record("b", *steps, cloud_id="c-b")))
    with opened(path) as store:
        seen = store.load()
        assert sorted(each.instance_id for each in seen.recent_failures) == ["a", "b"]
        store.commit(1, plan(moved(seen.instances["a"], S.TERMINATED)))
        assert sorted(each.instance_id for each in store.load().recent_failures) == ["a", "b"]
    with opened(path) as store:
        assert sorted(each.instance_id for each in store.load().recent_failures) == ["a", "b"]


def test_a_write_by_somebody_else_is_noticed_at_the_next_look(path):
    with opened(path) as store:
        store.commit(0, plan(record("a"), record("b")))
        assert list(store.load().instances) == ["a", "b"]
        changed_by_hand(path, "DELETE FROM instances WHERE instance_id = 'a'")
        assert list(store.load().instances) == ["b"]
        changed_by_hand(path, "UPDATE ledger SET version = 8")
        with pytest.raises(VersionConflict) as refused:
            store.commit(1, plan(record("c")))
        assert (refused.value.expected, refused.value.actual) == (1, 8)
        assert store.commit(8, plan(record("c"))) == 9


def test_a_record_taken_away_by_hand_is_not_written_back(path):
    with opened(path) as store:
        store.commit(0, plan(record("a")))
        seen = store.load().instances[InstanceId("a")]
        changed_by_hand(path, "DELETE FROM instances")
        with pytest.raises(StoreError, match=r"^record a: .*\b1\b.*\b0;"):
            store.commit(1, plan(moved(seen, S.REQUESTED)))


def test_im_2_a_write_between_look_and_commit_is_a_conflict_and_leaves_nothing(path, monkeypatch):
    with opened(path) as store:
        store.commit(0, plan(record("a")))
        real = store._database.transaction

        def overtaken():
            changed_by_hand(path, "UPDATE ledger SET version = 5")
            return real()

        monkeypatch.setattr(store._database, "transaction", overtaken)
        with pytest.raises(VersionConflict) as refused:
            store.commit(1, plan(record("b"), actions=[launch("e-1")]))
        monkeypatch.undo()
        assert (refused.value.expected, refused.value.actual) == (1, 5)
        ledger = store.load()
        assert (ledger.version, list(ledger.instances), ledger.outbox) == (5, ["a"], ())


def test_im_2_a_commit_whose_answer_was_lost_is_found_at_the_next_look(path, monkeypatch):
    with opened(path) as store:
        real = store._database.execute

        def answer_lost(sql, values=()):
            rows = real(sql, values)
            if sql == "COMMIT":
                raise StoreError("disk I/O error")
            return rows

        monkeypatch.setattr(store._database, "execute", answer_lost)
        with pytest.raises(StoreError, match="disk I/O error"):
            store.commit(0, plan(record("a"), actions=[launch("e-1")]))
        monkeypatch.undo()
        ledger = store.load()
        assert (ledger.version, list(ledger.instances), ledger.outbox) == (1, ["a"], (launch("e-1"),))
        with pytest.raises(VersionConflict):
            store.commit(0, plan(record("a")))


def test_a_steady_ledger_is_not_read_again(path, monkeypatch):
    with opened(path) as store:
        store.commit(0, plan(record("a"), memory=Memory(spent=1.0)))
        monkeypatch.setattr(store, "_read_file", lambda: pytest.fail("read the file again"))
        statements = []
        store._database._connection.set_trace_callback(statements.append)
        for _ in range(3):
            ledger = store.load()
            assert store.commit(ledger.version, plan(at=NOW + 9, memory=ledger.memory)) == 1
        assert set(statements) == {"PRAGMA data_version"}


def test_memory_that_could_not_be_read_back_is_refused(path):
    with opened(path) as store:
        for wrong in (Memory(spent=math.nan), Memory(health={"a": TypeHealth(blocked_until=math.inf)})):
            with pytest.raises(StoreError, match=r"^memory "):
                store.commit(0, plan(record("a"), memory=wrong))
        assert (store.load().version, store.load().instances) == (0, {})


def test_garbled_messages_are_stored_without_the_garbage(path):
    garbled = "bad \udcff reply"
    with opened(path) as store:
        asked = moved(record("a"), S.REQUESTED, details=garbled)
        first = replace(plan(asked), quarantined=(Quarantined(source="cloud", message=garbled),))
        store.commit(0, first)
        seen = store.load().instances[InstanceId("a")]
        assert seen.details == "bad ? reply"
        assert store.commit(1, plan(moved(seen, S.ALLOCATION_FAILED))) == 2
    with opened(path) as store:
        assert store.load().recent_failures[0].instance_id == "a"
        assert store.history.decisions()[1].quarantined == [{"source": "cloud", "message": "bad ? reply"}]


def test_history_can_be_read_with_any_sqlite_tool(path):
    with opened(path) as store:
        store.commit(0, plan(record("a", S.QUEUED, S.REQUESTED), record("b", S.QUEUED, S.TERMINATED)))
    with closing(sqlite3.connect(path)) as shell:
        rows = shell.execute("SELECT * FROM history ORDER BY instance_id, position").fetchall()
        columns = shell.execute(
            "SELECT instance_id, state, terminal, ended_at, node_type, cloud_id, launch_request_id, version"
            " FROM instances ORDER BY instance_id"
        ).fetchall()
    assert [row[:4] for row in rows] == [
        ("a", 0, "QUEUED", NOW),
        ("a", 1, "REQUESTED", NOW + 1),
        ("b", 0, "QUEUED", NOW),
        ("b", 1, "TERMINATED", NOW + 1),
    ]
    assert all(row[4].endswith(row[2]) for row in rows)
    assert columns == [
        ("a", "REQUESTED", 0, 0.0, "cpu", "c-a", "r-a", 1),
        ("b", "TERMINATED", 1, NOW + 1, "cpu", "c-b", "r-b", 1),
    ]


def test_decisions_are_kept_within_their_bytes(path):
    with opened(path, retention=Retention(max_decision_bytes=2_000, step=50)) as store:
        for version in range(8):
            new = [record(f"r-{version}-{k:02d}") for k in range(30)]
            store.commit(version, plan(*new))
        sizes = store._database.execute("SELECT version, size FROM decisions ORDER BY version")
        assert [version for version, _ in sizes] == [6, 7, 8]
        assert sum(size for _, size in sizes) <= 2_000


def ended_rows(path, count):
    """Many ended records, written past the store: through it they would take a minute."""
    model = record("NAME", S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_RUNNING, S.TERMINATED, version=1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute(
            "WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k + 1 < ?),"
            " named AS (SELECT k, printf('e-%06d', k) AS name FROM n)"
            " INSERT INTO instances SELECT 1, ? + k / 1000.0, name, 'TERMINATED', 'cpu', 'c-' || name,"
            " 'r-' || name, 1, replace(?, 'NAME', name) FROM named",
            (count, NOW, codec.encode(model).decode()),
        )
        connection.commit()


def database_steps(store) -> int:
    """How many instructions SQLite's machine executes to read the ledger again, by the hundred."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    store._database._connection.set_progress_handler(step, 100)
    store._read_file()
    store._database._connection.set_progress_handler(None, 0)
    return count


@pytest.mark.slow
def test_w37_a_hundred_thousand_ended_records_do_not_slow_a_load(tmp_path):
    paths = (tmp_path / "none.db", tmp_path / "many.db")
    for path in paths:
        with opened(path) as store:
            store.commit(0, plan(*(record(f"a-{k:04d}", S.ALLOCATED, S.RAY_RUNNING) for k in range(2_000))))
    ended_rows(paths[1], 100_000)
    keep = Retention(max_ended=10**9)
    with opened(paths[0], retention=keep) as none, opened(paths[1], retention=keep) as many:
        assert len(many.load().instances) == len(none.load().instances) == 2_000
        assert len(many.history.find(["e-000000", "e-099999"])) == 2
        # SQLite's own count of work: the same on a busy machine. The seconds are measured in bench.reconcile.
        assert database_steps(many) <= 1.1 * database_steps(none)


OFFER = Offer(zone="a", market="spot", price_per_hour=0.5, max_nodes=3, billing_minimum_s=60.0)


def test_the_offer_of_a_machine_and_of_a_launch_survives_a_restart(path):
    launched = record("a", offer=OFFER, price_per_hour=0.5)
    asked = replace(launch("e-1"), offers=(OFFER,))
    health = Memory(health={"cpu a/spot": TypeHealth(failures=1.0, blocked_until=NOW + 9.0)})
    with opened(path) as store:
        store.commit(0, plan(launched, actions=[asked], memory=health))
    with opened(path) as store:
        ledger = store.load()
    assert (ledger.instances["a"].offer, ledger.outbox, ledger.memory) == (OFFER, (asked,), health)


def test_a_ledger_from_before_there_were_offers_opens(path):
    """Its records have no key `offer`; its launches are written as they are now."""
    with opened(path) as store:
        store.commit(0, plan(record("a"), actions=[launch("e-1")]))
    changed_by_hand(path, "UPDATE instances SET record = json_remove(record, '$.d.offer')")
    with closing(sqlite3.connect(path)) as connection:
        ((row,), (action,)) = connection.execute(
            "SELECT record FROM instances UNION ALL SELECT action FROM outbox"
        )
    assert "offer" not in row + action
    with opened(path) as store:
        ledger = store.load()
    assert (ledger.instances["a"].offer, ledger.damaged, ledger.outbox) == (None, (), (launch("e-1"),))
