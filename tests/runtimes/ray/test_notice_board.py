"""Notices in the cluster's store: damaged ones are named, old ones removed, changes seen."""

from __future__ import annotations

import json

import pytest

from muster.base.clock import ManualClock
from muster.cluster.model import Notice, NoticeKind
from muster.errors import EngineUnreachable
from muster.runtimes.ray.notice_board import GcsNoticeBoard

NOW = 100_000.0


class Store:
    """The part of GcsClient that the board uses."""

    def __init__(self):
        self.values, self.looks, self.is_away = {}, 0, False

    def kv_with_prefix(self, prefix, namespace):
        self.looks += 1
        if self.is_away:
            raise EngineUnreachable("away")
        return dict(self.values)

    def kv_delete(self, key, namespace):
        del self.values[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def board(store, clock):
    return GcsNoticeBoard(store, clock)


def put(store, name="i-1", **fields):
    value = {"cloud_id": name, "kind": "interruption", "deadline": NOW + 60, "source": "aws", "at": NOW}
    store.values[f"notice/{name}"] = json.dumps({**value, "is_cancelled": False, **fields}).encode()


def test_a_notice_is_read_as_the_watcher_writes_it(board, store):
    put(store)
    assert board.read().notices == (
        Notice(cloud_id="i-1", kind=NoticeKind.INTERRUPTION, deadline=NOW + 60, source="aws", at=NOW),
    )


@pytest.mark.parametrize("fields", [{"kind": "?"}, {"deadline": "soon"}, {"cloud_id": "i-2"}, {"at": None}])
def test_a_damaged_notice_is_named_and_the_others_are_read(board, store, fields):
    put(store)
    put(store, "bad", **fields)
    report = board.read()
    assert [one.cloud_id for one in report.notices] == ["i-1"]
    assert [note.source for note in report.damaged] == ["notice bad"]


def test_text_that_is_no_json_is_a_damaged_notice(board, store):
    store.values["notice/bad"] = b"\xff{"
    assert len(board.read().damaged) == 1


def test_a_notice_that_is_long_over_is_removed(board, store):
    put(store, deadline=NOW - 8000, at=NOW - 8100)
    put(store, "i-2", deadline=None, at=NOW - 100)
    assert [one.cloud_id for one in board.read().notices] == ["i-2"]
    assert list(store.values) == ["notice/i-2"]


def test_the_stamp_changes_with_a_notice_and_looks_once_a_second(board, store, clock):
    board.read()
    before = board.stamp()
    put(store)
    assert (board.stamp(), store.looks) == (before, 1)
    clock.advance(1.0)
    changed = board.stamp()
    assert (changed != before, store.looks) == (True, 2)
    store.is_away = True
    clock.advance(1.0)
    assert board.stamp() == changed
