"""Measure CPU seconds in turns: what is compared is measured side by side, not block after block."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CPU_LIMIT_S = 300.0  # a case that needs more is recorded as "more than this", not waited for


@dataclass(frozen=True)
class Timed:
    """The answer of one run, and the CPU time of this process that it took."""

    value: Any
    cpu_s: float


def timed(prepare: Callable[[], Any], run: Callable[[Any], Any]) -> Timed:
    """Run once on fresh input; making the input and collecting old garbage are not counted."""
    given = prepare()
    gc.collect()
    started = time.process_time()
    value = run(given)
    return Timed(value, time.process_time() - started)


def calibration_s() -> float:
    """Return the CPU seconds of a fixed loop: how fast this machine is now, for bars in seconds."""
    started = time.process_time()
    total = 0
    for number in range(5_000_000):
        total += number & 7
    return time.process_time() - started


@dataclass
class Party:
    """One side of a comparison; `once` runs it one time, and returns None at the limit."""

    name: str
    once: Callable[[], Timed | None]
    budget_s: float  # how much CPU may go into repetitions; the first run always happens
    max_runs: int = 9
    runs: list[Timed] = field(default_factory=list)
    over_limit: bool = False

    def take_turn(self) -> None:
        result = self.once()
        if result is None:
            self.over_limit = True
        else:
            self.runs.append(result)

    def wants_more(self) -> bool:
        """Return whether the side has not had its share of runs and of CPU yet."""
        spent = sum(run.cpu_s for run in self.runs)
        typical = spent / len(self.runs) if self.runs else 0.0
        return (
            not self.over_limit
            and len(self.runs) < self.max_runs
            and (not self.runs or spent + typical <= self.budget_s)
        )

    @property
    def cpu_s(self) -> float:
        """Return the median; the limit itself, a lower bound, when it was hit."""
        return CPU_LIMIT_S if self.over_limit else statistics.median(run.cpu_s for run in self.runs)

    @property
    def value(self) -> Any:
        """Return the last answer; None when every run hit the limit."""
        return self.runs[-1].value if self.runs else None


def interleave(*parties: Party) -> None:
    """Run all sides turn by turn, so that noise of the machine falls on all of them."""
    waiting = [party for party in parties if party.wants_more()]
    while waiting:
        for party in waiting:
            party.take_turn()
        waiting = [party for party in waiting if party.wants_more()]
