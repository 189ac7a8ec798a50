"""One monitor per cluster, also when the second one runs on another host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec
import pytest

from muster.autoscaler.lease import AlreadyMonitored, Holder, Lease
from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.model import RuntimeReport
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger, TickResult
from muster.cluster.snapshot import Snapshot

TICK = TickResult(
    plan=Plan(tick_id="t", at=0.0),
    snapshot=Snapshot(tick_id="t", now=0.0, runtime=RuntimeReport()),
    ledger=Ledger(),
)


class Key:
    """One key of a store in memory."""

    def __init__(self, value=None):
        self.value = value

    def kv_get(self, key, namespace):
        return self.value

    def kv_put(self, key, value, namespace):
        self.value = value

    def kv_delete(self, key, namespace):
        self.value = None


@pytest.fixture
def clock():
    return ManualClock(1000.0)


def lease(key, clock, epoch=0):
    return Lease(key, clock, CountingIds(epoch))


def elsewhere(**changes):
    usual = {"host": "other-host", "pid": 7, "lease": "monitor-x", "at": 0.0}
    return Holder(**{**usual, **changes})


def encoded(holder):
    return msgspec.json.encode(holder)


def test_a_cluster_without_a_monitor_is_taken_at_once_and_says_by_whom(clock):
    key = Key()
    lease(key, clock).take(clock.sleep)
    holder = msgspec.json.decode(key.value, type=Holder)
    assert (holder.host, holder.pid, clock.monotonic()) == (socket.gethostname(), os.getpid(), 0.0)


def test_a_holder_elsewhere_that_renews_keeps_us_out(clock):
    key = Key(encoded(elsewhere()))

    def pass_time(seconds):
        clock.sleep(seconds)
        if clock.monotonic() > 4:
            key.value = encoded(elsewhere(beat=1))

    with pytest.raises(AlreadyMonitored, match=r"\b7 .*\bother-host\b"):
        lease(key, clock).take(pass_time)


def test_a_holder_elsewhere_that_is_quiet_is_followed_whatever_its_clock_says(clock):
    key = Key(encoded(elsewhere(at=1e12)))
    lease(key, clock).take(clock.sleep)
    assert b"other-host" not in key.value
    assert clock.monotonic() == 15.0


def test_a_dead_process_of_this_host_is_not_waited_for(clock):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    key = Key(encoded(elsewhere(host=socket.gethostname(), pid=child.pid)))
    lease(key, clock).take(clock.sleep)
    assert clock.monotonic() == 0.0


def test_it_is_renewed_now_and_then_and_let_go_at_the_end(clock):
    key = Key()
    mine = lease(key, clock)
    mine.take(clock.sleep)
    first = key.value
    mine.on_tick(TICK)
    assert key.value == first
    clock.advance(5)
    mine.on_tick(TICK)
    assert key.value != first
    mine.release()
    assert key.value is None


def test_a_runtime_that_forgot_us_is_told_again(clock):
    key = Key()
    mine = lease(key, clock)
    mine.take(clock.sleep)
    key.value = None
    clock.advance(5)
    mine.on_tick(TICK)
    assert key.value is not None


def test_who_was_replaced_stops_and_leaves_the_other_alone(clock):
    key = Key()
    mine, other = lease(key, clock), lease(key, clock, epoch=1)
    mine.take(clock.sleep)
    other.take(clock.sleep)  # we were asleep for long
    clock.advance(5)
    with pytest.raises(AlreadyMonitored):
        mine.on_tick(TICK)
    theirs = key.value
    mine.release()
    assert key.value == theirs


def test_nonsense_in_the_key_is_nobodys(clock):
    key = Key(b"\xff not json")
    lease(key, clock).take(clock.sleep)
    assert clock.monotonic() == 0.0
