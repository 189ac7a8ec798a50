"""Calls on daemon threads: how many run at once, and what a hung one costs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import wait

import pytest

from muster.host.call_threads import InlinePool, ThreadPool, in_thread


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def test_a_free_thread_makes_the_next_call(gate):
    pool = ThreadPool("p")
    names = [pool.submit(lambda: threading.current_thread().name).result(10) for _ in range(3)]
    assert names == ["p-1"] * 3
    pool.submit(gate.wait)  # a call that hangs has its thread for itself
    assert pool.submit(lambda: 7).result(10) == 7
    pool.close()


def test_a_full_pool_lets_calls_wait_and_close_cancels_them(gate):
    pool = ThreadPool("p", 1)
    running, waiting = pool.submit(gate.wait), pool.submit(int)
    pool.close()
    assert (waiting.cancelled(), running.done()) == (True, False)
    gate.set()
    assert wait((running,), 10).done
    with pytest.raises(RuntimeError):
        pool.submit(int)


@pytest.mark.parametrize("pool", [ThreadPool("p"), InlinePool()])
def test_an_error_is_raised_where_the_result_is_read(pool):
    future = pool.submit(lambda: int("x"))
    with pytest.raises(ValueError):
        future.result(10)


def test_an_event_loop_waits_without_blocking_and_may_give_up(gate):
    async def scene():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(in_thread(gate.wait), 0.01)
        with pytest.raises(RuntimeError):
            await in_thread(lambda: next(iter(())))
        return await in_thread(lambda: 7)

    assert asyncio.run(scene()) == 7
