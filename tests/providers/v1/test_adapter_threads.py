"""V1Adapter with its real threads: nothing slow holds anything else up."""

from __future__ import annotations

import threading

import pytest
from tests.providers.v1.scripted import Scripted, adapted, counted

from muster.base.clock import SystemClock
from muster.providers.background_calls import ListingLate

LONG_S = 30.0


def soon(holds):
    clock = SystemClock()
    end = clock.monotonic() + LONG_S
    while not holds() and clock.monotonic() < end:
        clock.sleep(0.005)
    assert holds()


@pytest.fixture
def v1():
    return Scripted()


@pytest.fixture
def gate():
    """Something a call waits for; opened in the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.conformance("NP-4")
def test_np_4_batches_of_one_and_one_at_a_time(v1):
    clock = SystemClock()
    v1.before_create = lambda *_: clock.sleep(0.02)
    port = adapted(v1, threads=True, max_launch_batch=1, max_concurrent=1)
    port.launch("r-1", {"cpu": 1, "gpu": 1})
    soon(lambda: counted(port) == {"cpu": 1, "gpu": 1})
    assert (sorted(v1.creates), v1.most_creating) == ([("cpu", 1), ("gpu", 1)], 1)
    port.close()


def test_as_many_creates_at_a_time_as_the_limits_allow_and_no_more(v1, gate):
    v1.before_create = lambda *_: gate.wait(LONG_S)
    port = adapted(v1, threads=True, max_launch_batch=5, max_concurrent=10)
    port.launch("r-1", {"cpu": 20})
    soon(lambda: v1.now_creating == 2)
    gate.set()
    soon(lambda: counted(port) == {"cpu": 20})
    assert (v1.creates, v1.most_creating) == ([("cpu", 5)] * 4, 2)
    port.close()


def test_a_slow_termination_does_not_delay_a_launch(v1, gate):
    port = adapted(v1, threads=True)
    port.launch("r-1", {"cpu": 1})
    soon(lambda: counted(port) == {"cpu": 1})
    v1.before_terminate = lambda *_: gate.wait(LONG_S)
    for number in range(8):  # more than there are threads for it
        port.terminate(f"t-{number}", [*port.list_instances(), f"unknown-{number}"])
    port.launch("r-2", {"gpu": 2})
    soon(lambda: counted(port) == {"cpu": 1, "gpu": 2})
    assert not gate.is_set()
    gate.set()
    soon(lambda: counted(port) == {"gpu": 2})
    port.close()


def test_launch_and_terminate_return_while_the_cloud_works_and_stay_under_way_until_it_is_done(v1, gate):
    v1.before_create = lambda *_: gate.wait(LONG_S)
    port = adapted(v1, threads=True)
    port.launch("r-1", {"cpu": 1})
    assert port.under_way("r-1")
    assert not port.under_way("r-2")
    gate.set()
    soon(lambda: port.list_instances() and not port.under_way("r-1"))
    assert counted(port) == {"cpu": 1}
    port.close()


def test_a_failed_launch_stays_under_way_until_its_failure_was_fetched(v1):
    def refuse(tags, count):
        raise RuntimeError("no")

    v1.before_create = refuse
    port = adapted(v1)
    port.launch("r-1", {"cpu": 1})
    assert port.under_way("r-1")
    assert len(port.poll_launch_failures()) == 1
    assert not port.under_way("r-1")


def test_a_request_repeated_while_the_first_is_under_way_buys_nothing_more(v1, gate):
    v1.before_create = lambda *_: gate.wait(LONG_S)
    port = adapted(v1, threads=True)
    for _ in range(3):
        port.launch("r-1", {"cpu": 2})
    gate.set()
    soon(lambda: port.list_instances() and not port.under_way("r-1"))
    assert v1.creates == [("cpu", 2)]
    port.close()


def test_a_listing_that_hangs_does_not_hold_the_loop_up_and_its_answer_serves_a_later_tick(v1, gate):
    port = adapted(v1, threads=True, list_wait_s=0.05)
    port.launch("r-1", {"cpu": 1})
    soon(lambda: port.list_instances() and not port.under_way("r-1"))
    v1.before_list = lambda filters: gate.wait(LONG_S)
    for _ in range(2):
        with pytest.raises(ListingLate, match="has been listing its machines for"):
            port.list_instances()
    gate.set()

    def answered():
        try:
            return counted(port) == {"cpu": 1}
        except ListingLate:
            return False

    soon(answered)
    port.close()


def test_a_listing_nobody_answers_is_asked_again_by_another_thread(v1, gate):
    first = iter([True])

    def hang_once(filters):
        if next(first, False):
            gate.wait(LONG_S)

    v1.before_list = hang_once
    port = adapted(v1, threads=True, list_wait_s=0.02, given_up_s=0.1)
    clock = SystemClock()
    with pytest.raises(ListingLate):
        port.list_instances()
    clock.sleep(0.15)

    def answered():
        try:
            return counted(port) == {}
        except ListingLate:
            return False

    soon(answered)
    assert not gate.is_set()
    port.close()


def test_close_does_not_wait_for_a_hung_call_and_takes_nothing_more(v1, gate):
    v1.before_create = lambda *_: gate.wait(LONG_S)
    port = adapted(v1, threads=True)
    port.launch("r-1", {"cpu": 1})
    soon(lambda: v1.now_creating == 1)
    port.close(wait_s=0.05)
    with pytest.raises(RuntimeError, match="closed"):
        port.launch("r-2", {"cpu": 1})
    assert not port.under_way("r-2")
