from __future__ import annotations

import pytest
from bench.measure import CPU_LIMIT_S, Party, Timed, interleave, timed


def scripted(name: str, log: list[str], cpu_s: float, **limits) -> Party:
    def once() -> Timed:
        log.append(name)
        return Timed(len(log), cpu_s)

    return Party(name, once, **limits)


def test_parties_take_turns():
    log: list[str] = []
    a = scripted("a", log, 0.1, budget_s=10.0, max_runs=3)
    b = scripted("b", log, 0.1, budget_s=10.0, max_runs=3)
    interleave(a, b)
    assert log == ["a", "b", "a", "b", "a", "b"]


def test_a_slow_party_runs_once_while_a_fast_one_continues():
    log: list[str] = []
    fast = scripted("fast", log, 0.1, budget_s=1.0, max_runs=4)
    slow = scripted("slow", log, 100.0, budget_s=1.0, max_runs=4)
    interleave(fast, slow)
    assert log == ["fast", "slow", "fast", "fast", "fast"]


def test_the_median_is_reported_and_the_last_answer_kept():
    times = iter([5.0, 1.0, 2.0])
    party = Party("p", lambda: Timed("answer", next(times)), budget_s=100.0, max_runs=3)
    interleave(party)
    assert (party.cpu_s, party.value) == (2.0, "answer")


def test_a_party_over_the_limit_is_not_asked_again_and_counts_as_the_limit():
    party = Party("p", lambda: None, budget_s=100.0)
    interleave(party)
    assert (party.over_limit, party.cpu_s, party.value, party.runs) == (True, CPU_LIMIT_S, None, [])


@pytest.mark.slow
def test_making_the_input_is_not_counted():
    def prepare() -> int:
        return sum(range(3_000_000))

    result = timed(prepare, lambda given: given)
    assert result.value == sum(range(3_000_000))
    assert result.cpu_s < 0.005
