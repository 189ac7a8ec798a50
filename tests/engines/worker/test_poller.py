"""Waiting places: which of them spin."""

from __future__ import annotations

import pytest

from muster.engines.worker import handle
from muster.engines.worker.handle import SPINS, SpinThenWait


@pytest.fixture
def polls(monkeypatch):
    """Return how often each of several waits polled when nothing came, on so many processors."""

    def waited(processors: int, times: int) -> list[int]:
        monkeypatch.setattr(handle, "cpu_count", lambda: processors)
        spinner, counts = SpinThenWait(), []
        for _ in range(times):
            made: list[float] = []
            assert spinner.poll(made.append) is None
            counts.append(len(made))
        return counts

    return waited


def test_with_one_processor_nothing_spins(polls):
    assert polls(1, 3) == [0, 0, 0]


def test_the_more_often_nothing_came_the_rarer_it_spins(polls):
    assert polls(2, 6) == [SPINS, 0, SPINS, 0, 0, 0]


def test_processors_that_this_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    assert SpinThenWait().poll(lambda timeout_s: [(0, 1)]) is None


def test_an_answer_makes_the_next_wait_spin_again(monkeypatch):
    monkeypatch.setattr(handle, "cpu_count", lambda: 2)
    spinner = SpinThenWait()
    answers = iter([[], ["answer"], *[[]] * SPINS])
    assert [spinner.poll(lambda timeout_s: next(answers)) for _ in range(2)] == [["answer"], None]
