"""DrivenReporter: drives a ProgressReporter (Ray's protocol), and tells of trials in the old words.

Used for `RunConfig.progress_reporter` and for RAY_AIR_NEW_OUTPUT=0. Reports look at all trials, so they are
spaced by what they cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock
from muster.tune.reporting import summary as ending
from muster.tune.reporting.info import RunInfo
from muster.tune.reporting.legacy import resource_text, trial_details, trial_sentence
from muster.tune.reporting.outlet import Outlet
from muster.tune.reporting.pace import Pace
from muster.tune.reporting.reporter import Reporter

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.progress_reporter import ProgressReporter

PER_TRIAL_S = 5.0  # between two lines about the same trial
POLL_S = 0.25  # between two questions to `should_report`


class DrivenReporter(Reporter):
    """`level`: 1 the state of the experiment, 2 also results, 3 also their details and tables."""

    def __init__(self, reporter: ProgressReporter, *, clock: Clock, level: int, tables: bool = False) -> None:
        self._reporter = reporter
        self._clock = clock
        self._pace = Pace(POLL_S)
        self._level = level
        self._outlet = Outlet()
        self._told_at: dict[str, float] = {}
        configure = getattr(reporter, "set_verbosity", None)
        if configure is not None:
            configure(level, tables=tables)

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._reporter.setup(
            start_time=self._clock.now(),
            total_samples=info.total,
            metric=info.metric,
            mode=info.mode,
        )
        remember = getattr(self._reporter, "set_directory", None)
        if remember is not None:
            remember(info.directory, info.parameters)

    def note(self, text: str) -> None:
        self._outlet.say(text)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        began = self._clock.monotonic()
        if began >= self._pace.due:
            if self._reporter.should_report(trials, done=False):
                self._report(trials, done=False)
            self._pace.showed(began, self._clock.monotonic())

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        if self._reporter.should_report(list(trials), done=True):
            self._report(trials, done=True)
        if interrupted:
            self._outlet.say("\n".join(ending.resume_lines(self.info, trials)))

    def _report(self, trials: Sequence[Trial], *, done: bool) -> None:
        used = resource_text(self.info.capacity, self.info.used())
        self._reporter.report(list(trials), done, self.info.scheduler_debug(), used)


class DetailedDrivenReporter(DrivenReporter):
    """From level 2 on: results too, of a trial that runs at most every few seconds."""

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,  # noqa: ANN401
    ) -> None:
        at = self._clock.monotonic()
        if at - self._told_at.get(trial.trial_id, float("-inf")) >= PER_TRIAL_S:
            self._told_at[trial.trial_id] = at
            self._tell(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._told_at.pop(trial.trial_id, None)
        self._tell(trial, trial.last_result, end=" This trial completed.")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._told_at.pop(trial.trial_id, None)
        self._tell(trial, trial.last_result, end=" This trial errored.")

    def _tell(self, trial: Trial, result: Mapping[str, Any], end: str = "") -> None:
        if self._level >= 3:
            self._outlet.say(trial_details(trial, result, end.strip()))
        else:
            self._outlet.say(trial_sentence(trial, result, self.info.metric, self.info.parameters) + end)
