"""WatchingReporter: keeps the tally up to date by hooks, and shows a picture whenever one is due.

The base of the plain, live and notebook reporters. Hooks cost about a microsecond; pictures are spaced by
what they cost, so that showing never takes more than a few percent of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock
from muster.tune.reporting.info import RunInfo
from muster.tune.reporting.pace import Pace, Speed
from muster.tune.reporting.reporter import Reporter
from muster.tune.reporting.snapshot import Picture, best_of, waiting
from muster.tune.reporting.tally import Tally

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial

SHOWN_BEST = 5


class WatchingReporter(Reporter):
    """Subclasses draw: `show` now and then, `conclude` once at the end."""

    def __init__(self, *, clock: Clock, period_s: float) -> None:
        self._clock = clock
        self._pace = Pace(period_s)
        self._tally = Tally()
        self._began = clock.monotonic()
        self._speed: Speed | None = None

    def show(self, picture: Picture, trials: Sequence[Trial]) -> None:
        """Draw what is going on."""
        raise NotImplementedError

    def conclude(self, picture: Picture, trials: Sequence[Trial], *, interrupted: bool) -> None:
        """Draw how it ended."""
        raise NotImplementedError

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._tally = Tally(info.metric, info.mode)
        self._began = self._clock.monotonic()
        self._speed = None

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        self._tally.reset(trials)
        self.conclude(self.picture(trials), trials, interrupted=interrupted)

    # What CallbackList calls, by keyword

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.started(trial)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.completed(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.recovered(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.failed(trial)

    def on_trial_failure(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        failure: TrialFailure,
        **info: Any,  # noqa: ANN401
    ) -> None:
        self._tally.noted_failure(trial, failure.traceback or failure.message)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        began = self._clock.monotonic()
        if began >= self._pace.due:
            self._take_turn(began, trials)

    def _take_turn(self, began: float, trials: Sequence[Trial]) -> None:
        if self._speed is None:  # the first time: restored trials were finished before we came
            self._tally.reset(trials)
            self._speed = Speed(began, self._tally.finished)
        self.show(self.picture(trials), trials)
        self._pace.showed(began, self._clock.monotonic())

    def picture(self, trials: Sequence[Trial]) -> Picture:
        """This moment; its cost does not grow with the number of trials."""
        tally, info, at = self._tally, self.info, self._clock.monotonic()
        tally.settle()
        elapsed_s = at - self._began
        speed = self._speed or Speed(at, tally.finished)
        speed.sample(at, tally.finished)
        budget_left_s = None if info.time_budget_s is None else info.time_budget_s - elapsed_s
        best, best_value = best_of(tally, SHOWN_BEST)
        return Picture(
            info=info,
            now=self._clock.now(),
            elapsed_s=elapsed_s,
            counts=tally.counts(len(trials)),
            running=tuple(tally.running.values()),
            best=best,
            best_value=best_value,
            recent=tuple(reversed(tally.recent)),
            pending=waiting(trials, SHOWN_BEST),
            paused=tuple(islice(tally.paused.values(), SHOWN_BEST)),
            failures=tuple(tally.failures.values()),
            used=info.used(),
            per_second=speed.per_second(),
            eta_s=speed.eta_s(info.total, budget_left_s),
        )
