from __future__ import annotations

import pytest
from bench.measure import Timed
from bench.peer.process import PeerError, PeerProcess


@pytest.fixture
def child():
    process = PeerProcess(cpu_limit_s=0.5)
    yield process
    process.close()


@pytest.mark.slow
def test_a_call_runs_in_the_child_until_its_cpu_limit_and_the_next_call_gets_a_fresh_child(child):
    assert child.call(Timed, "answer", 1.5) == Timed("answer", 1.5)
    assert child.call(eval, "[0 for _ in iter(int, 1)]") is None
    assert child.call(Timed, "again", 0.1) == Timed("again", 0.1)


def test_an_error_in_the_child_is_an_error_here(child):
    with pytest.raises(PeerError, match="ZeroDivisionError"):
        child.call(eval, "1 / 0")
