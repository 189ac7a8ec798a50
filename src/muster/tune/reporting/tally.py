"""Keeps counts per status, the running trials, the best few and the latest, up to date per event.

Every call of an event is O(1), whatever the number of trials: experiments end thousands of trials per second.
PeriodicReporter calls it; it shows nothing.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.tune.analysis.tables import number
from muster.tune.reporting.formats import printable

if TYPE_CHECKING:
    from muster.trials.model import Trial

STATUSES = ("RUNNING", "TERMINATED", "PAUSED", "PENDING", "ERROR")
KEPT_BEST = 32  # more than is ever shown: a paused one that continues leaves the list
KEPT_RECENT = 20
KEPT_FAILURES = 20


class ScoreRank(NamedTuple):
    """A ScoreRank is a trial and its score: smaller is better, earlier wins."""

    key: float
    order: int
    trial: Trial


class Failed(NamedTuple):
    """A Failed is the latest failure of a trial, in one line."""

    trial: Trial
    message: str


class ExperimentTally:
    """An ExperimentTally counts what happened so far. `metric` None: no trial is best."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self.failures: dict[str, Failed] = {}
        self._clear()

    def _clear(self) -> None:
        self.running: dict[str, Trial] = {}
        self.paused: dict[str, Trial] = {}
        self.terminated = 0
        self.errored = 0
        self.best: list[ScoreRank] = []  # of trials without a process
        self.recent: deque[Trial] = deque(maxlen=KEPT_RECENT)
        self._offered = 0

    def reset(self, trials: Iterable[Trial]) -> None:
        """Counts every trial once: at the start, when there may be restored ones."""
        self._clear()
        for trial in trials:
            status = trial.status
            if status == "RUNNING":
                self.running[trial.trial_id] = trial
            elif status == "PAUSED":
                self.paused[trial.trial_id] = trial
                self._offer(trial)
            elif status == "TERMINATED":
                self.completed(trial)
            elif status == "ERROR":
                self.failed(trial)
                if trial.trial_id not in self.failures:
                    self.noted_failure(trial, "")

    def started(self, trial: Trial) -> None:
        key = trial.trial_id
        self.running[key] = trial
        if self.paused and self.paused.pop(key, None) is not None:
            self._withdraw(trial)

    def completed(self, trial: Trial) -> None:
        self.terminated += 1
        self.running.pop(trial.trial_id, None)
        self.recent.append(trial)
        if not self.paused or self.paused.pop(trial.trial_id, None) is None:
            self._offer(trial)

    def failed(self, trial: Trial) -> None:
        self.errored += 1
        self.running.pop(trial.trial_id, None)
        self.recent.append(trial)
        if self.paused.pop(trial.trial_id, None) is not None:
            self._withdraw(trial)

    def recovered(self, trial: Trial) -> None:
        self.running.pop(trial.trial_id, None)

    def noted_failure(self, trial: Trial, message: str) -> None:
        self.failures.pop(trial.trial_id, None)
        self.failures[trial.trial_id] = Failed(trial, last_line(message))
        if len(self.failures) > KEPT_FAILURES:
            del self.failures[next(iter(self.failures))]

    def failure_message(self, trial: Trial) -> str:
        failure = self.failures.get(trial.trial_id)
        return failure.message if failure is not None else ""

    @property
    def finished(self) -> int:
        return self.terminated + self.errored

    def move_paused(self) -> None:
        """Moves paused trials before a snapshot, because no hook reports a pause."""
        for trial in [trial for trial in self.running.values() if trial.status == "PAUSED"]:
            del self.running[trial.trial_id]
            self.paused[trial.trial_id] = trial
            self._offer(trial)

    def counts(self, created: int) -> dict[str, int]:
        """Returns trials per status, in the order in which statuses are shown."""
        known = len(self.running) + len(self.paused) + self.finished
        numbers = (
            len(self.running),
            self.terminated,
            len(self.paused),
            max(0, created - known),
            self.errored,
        )
        return dict(zip(STATUSES, numbers, strict=True))

    def ranked(self, count: int) -> list[ScoreRank]:
        """Returns the best trials by their last result, running ones among them."""
        if self.metric is None:
            return []
        live = [
            ScoreRank(key, -1, trial)
            for trial in self.running.values()
            if (key := self._key(trial)) is not None
        ]
        if not live:
            return self.best[:count]
        return sorted([*live, *self.best[:count]], key=lambda each: each[:2])[:count]

    def value(self, scored: ScoreRank) -> float:
        return scored.key * self._sign

    def _offer(self, trial: Trial) -> None:
        if self.metric is None:
            return
        key = self._key(trial)
        best = self.best
        if key is None or (len(best) == KEPT_BEST and key >= best[-1].key):
            return
        self._offered += 1
        insort(best, ScoreRank(key, self._offered, trial))  # no two have the same order
        del best[KEPT_BEST:]

    def _withdraw(self, trial: Trial) -> None:
        """Removes a paused trial that continues or fails from those that wait with their result."""
        self.best = [each for each in self.best if each.trial is not trial]

    def _key(self, trial: Trial) -> float | None:
        """Returns the sort key of a trial; NaN is no value, zero is one."""
        value = lookup(trial.last_result, self.metric or "")
        if type(value) is not float:
            value = number(value)
        return None if value is None or isnan(value) else value * self._sign


def lookup(values: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - a user's value
    """Returns a value by its flat key, `a/b` for `{"a": {"b": ...}}`; None when it is not there."""
    if key in values or "/" not in key:
        return values.get(key)
    found: Any = values
    for part in key.split("/"):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, Sequence) and not isinstance(found, str) and part.isdigit():
            found = found[int(part)] if int(part) < len(found) else None
        else:
            return None
    return found


def last_line(text: str) -> str:
    """Returns the line of a traceback that says what happened."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""
