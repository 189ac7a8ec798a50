"""Define the base of reporters that show a snapshot of the experiment whenever one is due.

They are the plain, live and notebook reporters. Hooks cost about a microsecond; snapshots are spaced by
what they cost, so that showing never takes more than a few percent of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from muster.base.clock import Clock
from muster.tune.reporting.reporter import Reporter, RunInfo
from muster.tune.reporting.tables import ALL_UP_TO, PER_STATUS, chosen
from muster.tune.reporting.tally import INTERRUPTED, ExperimentTally, FailureLine, ScoreRank

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial


SHARE = 0.02  # of the time that showing may take
WINDOW_S = 30.0
ENOUGH = 5  # finished trials that make the recent speed mean something


@dataclass(frozen=True, kw_only=True)
class ExperimentSnapshot:
    """One moment of an experiment."""

    info: RunInfo
    now: float  # wall clock
    elapsed_s: float
    counts: Mapping[str, int]
    running: Sequence[Trial]
    best: Sequence[ScoreRank]  # the best first
    best_value: float | None
    front: Sequence[Trial] = ()  # with several objectives, instead of the best
    recent: Sequence[Trial]  # finished, the latest first
    pending: Sequence[Trial]
    paused: Sequence[Trial]
    failures: Sequence[FailureLine]  # the latest last
    causes: Sequence[tuple[str, int]] = ()  # why trials failed in the end, and how many; only at the end
    used: Mapping[str, float]
    per_second: float | None = None
    eta_s: float | None = None

    @property
    def finished(self) -> int:
        return self.counts["TERMINATED"] + self.counts["ERROR"]

    @property
    def best_trial(self) -> Trial | None:
        return self.best[0].trial if self.best else None

    @property
    def starred(self) -> Sequence[Trial]:
        return self.front or [each.trial for each in self.best[:1]]


def rows_of(snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> tuple[list[Trial], str]:
    """Return all trials when they are few, else some of each status, the best and latest first."""
    if len(trials) <= ALL_UP_TO:
        return chosen(trials, snapshot.counts, ALL_UP_TO)
    best = [each.trial for each in snapshot.best if each.trial.status == "TERMINATED"]
    candidates = [
        *islice(snapshot.running, PER_STATUS),
        *best,
        *snapshot.recent,
        *islice(snapshot.paused, PER_STATUS),
        *snapshot.pending,
    ]
    return chosen(dict.fromkeys(candidates), snapshot.counts, PER_STATUS)


class ReportInterval:
    """Allows one snapshot per period, and fewer when snapshots are slow to make.

    The fastest of the last few decides: one slow snapshot does not delay the next ones, nor does the first,
    which also loads what draws it.
    """

    def __init__(self, period_s: float, share: float = SHARE) -> None:
        self.period_s = period_s
        self._share = share
        self._costs: deque[float] = deque([0.0], maxlen=3)
        self.due = float("-inf")

    def showed(self, began: float, ended: float) -> None:
        """Note that a snapshot took from `began` to `ended`, on the monotonic clock."""
        self._costs.append(ended - began)
        self.due = max(began + self.period_s, ended + min(self._costs) * (1 / self._share - 1))


class Speed:
    """Estimates trials per second from samples of the number of finished trials."""

    def __init__(self, at: float, finished: int) -> None:
        self._first = (at, finished)
        self._seen: deque[tuple[float, int]] = deque([self._first])

    def sample(self, at: float, finished: int) -> None:
        self._seen.append((at, finished))
        while len(self._seen) > 2 and self._seen[1][0] <= at - WINDOW_S:
            self._seen.popleft()

    def per_second(self) -> float | None:
        """Return the recent speed if enough trials finished, else that since the start; None before any."""
        at, finished = self._seen[-1]
        for since, before in (self._seen[0], self._first):
            done, elapsed_s = finished - before, at - since
            if elapsed_s > 0 and (done >= ENOUGH or (since == self._first[0] and done > 0)):
                return done / elapsed_s
        return None

    def eta_s(self, total: int | None, budget_left_s: float | None) -> float | None:
        """Return the seconds left by the speed so far, or by the time budget if that is sooner."""
        per_second = self.per_second()
        left = [] if budget_left_s is None else [max(0.0, budget_left_s)]
        if total is not None and per_second:
            left.append(max(0, total - self._seen[-1][1]) / per_second)
        return min(left, default=None)


SHOWN_BEST = 5


class PeriodicReporter(Reporter):
    """Keeps a tally; subclasses draw: `show` periodically, `conclude` at the end."""

    def __init__(self, *, clock: Clock, period_s: float) -> None:
        self._clock = clock
        self._pace = ReportInterval(period_s)
        self._tally = ExperimentTally()
        self._began = clock.monotonic()
        self._speed: Speed | None = None

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        """Draw the current snapshot."""
        raise NotImplementedError

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        """Draw how the run ended."""
        raise NotImplementedError

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._tally = ExperimentTally(info.metric, info.mode, info.objectives, info.constraints)
        self._began = self._clock.monotonic()
        self._speed = None

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        self._tally.reset(trials)
        snapshot = self.snapshot(trials)
        words, eta_s = ({"RUNNING": INTERRUPTED}, snapshot.eta_s) if interrupted else ({}, None)
        counts = {words.get(status, status): count for status, count in snapshot.counts.items()}
        causes = self._tally.causes(trials)
        snapshot = replace(snapshot, counts=counts, causes=causes, eta_s=eta_s)
        self.conclude(snapshot, trials, interrupted=interrupted)

    # What CallbackList calls, by keyword

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.started(trial)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.completed(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.recovered(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.failed(trial)

    def on_trial_failure(
        self, iteration: int, trials: list[Trial], trial: Trial, failure: TrialFailure, **info: object
    ) -> None:
        self._tally.noted_failure(trial, failure.traceback or failure.message)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        began = self._clock.monotonic()
        if began >= self._pace.due:
            if self._speed is None:  # the first time: restored trials finished before this run
                self._tally.reset(trials)
                self._speed = Speed(began, self._tally.finished)
            self.show(self.snapshot(trials), trials)
            self._pace.showed(began, self._clock.monotonic())

    def snapshot(self, trials: Sequence[Trial]) -> ExperimentSnapshot:
        """Return a snapshot of this moment; its cost does not grow with the number of trials."""
        tally, info, at = self._tally, self.info, self._clock.monotonic()
        tally.move_paused()
        elapsed_s = at - self._began
        speed = self._speed or Speed(at, tally.finished)
        speed.sample(at, tally.finished)
        budget_left_s = None if info.time_budget_s is None else info.time_budget_s - elapsed_s
        best = tally.ranked(SHOWN_BEST)
        # New trials are at the end of the list, so the rest is not searched for pending ones.
        pending = [trial for trial in islice(reversed(trials), 4 * SHOWN_BEST) if trial.status == "PENDING"]
        return ExperimentSnapshot(
            info=info,
            now=self._clock.now(),
            elapsed_s=elapsed_s,
            counts=tally.counts(len(trials), info.starting()),
            running=tuple(tally.running.values()),
            best=best,
            best_value=tally.value(best[0]) if best else None,
            front=tally.front(trials),
            recent=tuple(reversed(tally.recent)),
            pending=pending[: -SHOWN_BEST - 1 : -1],
            paused=tuple(islice(tally.paused.values(), SHOWN_BEST)),
            failures=tuple(tally.failures.values()),
            used=info.used(),
            per_second=speed.per_second(),
            eta_s=speed.eta_s(info.total, budget_left_s),
        )
