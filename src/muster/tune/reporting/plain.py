"""PlainReporter: lines for logs and pipes. No colours, no cursor, nothing is ever overwritten.

One line per finished or failed trial (few when there are many), a heartbeat every 30 s, tables at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from muster.base.clock import Clock
from muster.tune.reporting import plain_text
from muster.tune.reporting.event_lines import EventLines
from muster.tune.reporting.formats import SafeStream
from muster.tune.reporting.periodic import PeriodicReporter
from muster.tune.reporting.snapshot import ExperimentSnapshot, RunInfo
from muster.tune.reporting.tables import frame_for

if TYPE_CHECKING:
    from muster.trials.model import Trial

HEARTBEAT_S = 30.0


class PlainReporter(PeriodicReporter):
    """What `verbose=1` shows where there is no terminal."""

    def __init__(self, stream: TextIO, *, clock: Clock, level: int = 1) -> None:
        super().__init__(clock=clock, period_s=HEARTBEAT_S)
        self._say = SafeStream(stream).say
        self._level = level
        self._frame = frame_for(getattr(stream, "encoding", None))
        self._narrator = EventLines(self._say, clock=clock, level=level, frame=self._frame)
        self._is_first = True

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._is_first = True
        self._narrator.begin(info.metric)
        self._say(plain_text.configuration(info, self._frame))

    def note(self, text: str) -> None:
        self._say(text)

    def show(self, picture: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        if self._is_first:  # nothing has happened yet; the configuration was shown a moment ago
            self._is_first = False
            return
        self._narrator.new_window()
        self._say("\n" + plain_text.heartbeat(picture))
        if self._level >= 2 and trials:
            self._say(plain_text.trial_table(picture, trials, self._frame))

    def conclude(self, picture: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._narrator.new_window()
        said = plain_text.conclusion(picture, trials, self._frame, interrupted=interrupted)
        self._say("\n" + said)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.completed(trial)
        self._narrator.finished(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.failed(trial)
        failure = self._tally.failures.get(trial.trial_id)
        self._narrator.errored(trial, failure.message if failure is not None else "")

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.recovered(trial)
        failure = self._tally.failures.get(trial.trial_id)
        self._narrator.retried(trial, failure.message if failure is not None else "")


class DetailedPlainReporter(PlainReporter):
    """From `verbose=2` on: starts, results and checkpoints too."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._tally.started(trial)
        self._narrator.started(trial)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,  # noqa: ANN401
    ) -> None:
        self._narrator.reported(trial, result)

    def on_checkpoint(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        checkpoint: Any,  # noqa: ANN401
        **info: Any,  # noqa: ANN401
    ) -> None:
        self._narrator.checkpointed(trial, checkpoint)
