"""Narrator: a line per event of a trial, so few that a log of 20,000 quick trials stays readable.

Of each kind of event only the first few in every window are told; the rest is counted, and told as one line
when the window ends. Used by the plain reporter at any level, and by the live view from level 2 on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from muster.base.text import moment
from muster.tune.reporting import plain_text
from muster.tune.reporting.formats import brief, duration
from muster.tune.reporting.summary import error_file
from muster.tune.reporting.tables import BoxCharacters
from muster.tune.reporting.tally import last_line, lookup

if TYPE_CHECKING:
    from muster.base.clock import Clock
    from muster.session.checkpoint import Checkpoint
    from muster.trials.model import Trial

LINES_PER_WINDOW = {1: 20, 2: 100, 3: 300}
_KINDS = {
    "finished": "trials finished",
    "errored": "trials errored",
    "retried": "failures that are tried again",
    "started": "trials started",
    "result": "results",
    "checkpoint": "checkpoints",
}


class EventLines:
    """Tells `say` what happened to trials; `level` is RunConfig.verbose."""

    def __init__(self, say: Callable[[str], None], *, clock: Clock, level: int, frame: BoxCharacters) -> None:
        self._say = say
        self._clock = clock
        self._level = level
        self._frame = frame
        self._limit = LINES_PER_WINDOW[level]
        self._told = dict.fromkeys(_KINDS, 0)
        self._began = clock.monotonic()
        self.metric: str | None = None

    def begin(self, metric: str | None) -> None:
        self._began, self.metric = self._clock.monotonic(), metric

    def started(self, trial: Trial) -> None:
        if not self._may_tell("started"):
            return
        if self._level >= 3 and trial.config:
            table = plain_text.config_table(trial, self._frame)
            self._say(f"Trial {trial} started with configuration:\n{table}")
        else:
            self._say(f"Trial {trial} started {self._when()}")

    def finished(self, trial: Trial) -> None:
        if not self._may_tell("finished"):
            return
        iterations = trial.last_result.get("training_iteration", 0)
        line = f"Trial {trial} completed after {iterations} iterations {self._when()}"
        self._say(f"{line}{self._score(trial.last_result)}")
        if self._level >= 3:
            self._say(plain_text.result_table(trial, trial.last_result, self._frame))

    def errored(self, trial: Trial, message: str) -> None:
        if not self._may_tell("errored"):
            return
        iterations = trial.last_result.get("training_iteration", 0)
        lines = [f"Trial {trial} errored after {iterations} iterations {self._when()}"]
        if message:
            lines.append(f"  {last_line(message)}")
        if file := error_file(trial):
            lines.append(f"Error file: {file}")
        self._say("\n".join(lines))

    def retried(self, trial: Trial, message: str) -> None:
        if self._may_tell("retried"):
            self._say(f"Trial {trial} failed and is tried again: {last_line(message)}")

    def reported(self, trial: Trial, result: Mapping[str, Any]) -> None:
        if not self._may_tell("result"):
            return
        iteration = result.get("training_iteration", 0)
        self._say(f"Trial {trial} finished iteration {iteration} {self._when()}{self._score(result)}")
        if self._level >= 3:
            self._say(plain_text.result_table(trial, result, self._frame))

    def checkpointed(self, trial: Trial, checkpoint: Checkpoint) -> None:
        if self._may_tell("checkpoint"):
            iteration = trial.last_result.get("training_iteration", 0)
            where = f"({'local' if getattr(checkpoint, '_is_local', True) else 'remote'}){checkpoint.path}"
            self._say(f"Trial {trial} saved a checkpoint for iteration {iteration} at: {where}")

    def new_window(self) -> None:
        """Tell in one line what was left out, and begin to tell again."""
        left = {kind: count - self._limit for kind, count in self._told.items() if count > self._limit}
        self._told = dict.fromkeys(_KINDS, 0)
        if left:
            self._say("... " + ", ".join(f"{count:,} more {_KINDS[kind]}" for kind, count in left.items()))

    def _may_tell(self, kind: str) -> bool:
        self._told[kind] += 1
        return self._told[kind] <= self._limit

    def _when(self) -> str:
        running_s = self._clock.monotonic() - self._began
        return f"at {moment(self._clock.now())}. Total running time: {duration(running_s)}"

    def _score(self, result: Mapping[str, Any]) -> str:
        if self.metric is None:
            return ""
        value = lookup(result, self.metric)
        return "" if value is None else f", {self.metric}={brief(value)}"
