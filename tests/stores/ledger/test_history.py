"""The past of a ledger file, asked by another process."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.support.builders import NOW, launch, plan, record

from muster.base.clock import ManualClock
from muster.cluster.snapshot import Memory
from muster.cluster.states import InstanceState as S
from muster.errors import LedgerCorrupt
from muster.stores.ledger.history import Spend, open_history
from muster.stores.ledger.store import SqliteInstanceStore


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with SqliteInstanceStore(path, clock=ManualClock(NOW)) as store:
        running = record("a", S.ALLOCATED, S.RAY_RUNNING, price_per_hour=3.0)
        ended = record("b", S.QUEUED, S.TERMINATED)
        store.commit(0, plan(running, ended, actions=[launch("e-1")], memory=Memory(spent=2.0)))
        store.commit(1, plan(record("c"), at=NOW + 1, memory=Memory(spent=2.0)))
    return path


def changed_by_hand(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_reader_finds_what_the_writer_left(path):
    with open_history(path) as history:
        assert history.version() == 2
        assert [(r.instance_id, r.state, len(r.history)) for r in history.find()] == [
            ("a", S.RAY_RUNNING, 2),
            ("b", S.TERMINATED, 2),
            ("c", S.QUEUED, 1),
        ]
        assert [(d.tick_id, dict(d.moved)) for d in history.decisions()] == [
            ("t-1001", {"c": "QUEUED"}),
            ("t-1000", {"a": "RAY_RUNNING", "b": "TERMINATED"}),
        ]
        spend = history.spend(NOW + 1200)
        assert spend == Spend(gone=2.0, live=1.0, per_hour=3.0)
        assert spend.total == 3.0


def test_a_thousand_ids_are_found_at_once(path):
    with open_history(path) as history:
        found = history.find([*(f"x-{k}" for k in range(1200)), "a", "c"])
        assert [r.instance_id for r in found] == ["a", "c"]


def test_what_cannot_be_read_is_left_out(path):
    changed_by_hand(path, "UPDATE instances SET record = 'x' WHERE instance_id = 'a'")
    changed_by_hand(path, "UPDATE decisions SET verdicts = 'x' WHERE version = 2")
    with open_history(path) as history:
        assert [r.instance_id for r in history.find()] == ["b", "c"]
        assert [d.version for d in history.decisions()] == [1]
        assert history.spend(NOW + 1200) == Spend(gone=2.0, live=0.0, per_hour=0.0)


def test_unknown_spend_is_not_shown_as_nothing(path):
    changed_by_hand(path, "UPDATE memory SET value = 'x'")
    with open_history(path) as history, pytest.raises(LedgerCorrupt, match=r"`memory`.*\bspend\b"):
        history.spend(NOW)
