"""Keep counts per status, the running trials, the best few and the latest, up to date per event.

Every call of an event is O(1), whatever the number of trials: experiments end thousands of trials per second.
PeriodicReporter calls it; it shows nothing.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.trials.metrics import rank_key
from muster.tune.pareto import pareto_front, violations
from muster.tune.reporting.formats import printable

if TYPE_CHECKING:
    from muster.trials.model import Trial

STARTING = "STARTING"  # for users: it is pending, and its process is on its way
INTERRUPTED = "INTERRUPTED"  # for users: it was running when the run was stopped
STATUSES = ("RUNNING", "TERMINATED", "PAUSED", "PENDING", "ERROR")
KEPT_BEST = 32  # more than is ever shown: a paused one that continues leaves the list
KEPT_RECENT = 20
KEPT_FAILURES = 20
KEPT_CAUSES = 50
UNKNOWN_CAUSE = "for another reason"
PLACE = re.compile(r'^\s*File "(.+?)", line (\d+)', re.MULTILINE)
_LIBRARIES = ("site-packages", "/muster/", "/lib/python3", "<frozen")


class ScoreRank(NamedTuple):
    """A trial and its score: smaller is better, the one created first wins."""

    key: tuple[bool, float]  # trials that violate a constraint come last
    order: int
    trial: Trial


class FailureLine(NamedTuple):
    """The latest failure of a trial, in one line."""

    trial: Trial
    message: str


class ExperimentTally:
    """Counts what happened so far. Without a metric and its mode no trial is best."""

    def __init__(
        self,
        metric: str | None = None,
        mode: str | None = None,
        objectives: Mapping[str, str] | None = None,
        constraints: Mapping[str, float] | None = None,
    ) -> None:
        self.metric = None if mode is None else metric
        self._mode = mode
        self._objectives, self._constraints = objectives or {}, constraints or {}
        self.failures: dict[str, FailureLine] = {}
        self._cause_of: dict[str, str] = {}  # trial to kind and place of its last failure
        self._causes: dict[str, str] = {}  # kind and place to the first message of that kind
        self._clear()

    def _clear(self) -> None:
        self.running: dict[str, Trial] = {}
        self.paused: dict[str, Trial] = {}
        self.terminated = 0
        self.errored = 0
        self.best: list[ScoreRank] = []  # of trials without a process
        self._front: list[Trial] = []  # the same, by several objectives
        self.recent: deque[Trial] = deque(maxlen=KEPT_RECENT)

    def reset(self, trials: Iterable[Trial]) -> None:
        """Count every trial once: at the start, when there may be restored ones."""
        self._clear()
        for trial in trials:
            status = trial.status
            if status == "RUNNING":
                self.running[trial.trial_id] = trial
            elif status == "PAUSED":
                self.paused[trial.trial_id] = trial
                self._offer(trial)
            elif status == "PENDING":
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
        self.paused.pop(key, None)
        self._withdraw(trial)

    def completed(self, trial: Trial) -> None:
        self.terminated += 1
        self._end(trial)

    def failed(self, trial: Trial) -> None:
        self.errored += 1
        self._end(trial)

    def _end(self, trial: Trial) -> None:
        self.recent.append(trial)
        self.paused.pop(trial.trial_id, None)
        self.recovered(trial)

    def recovered(self, trial: Trial) -> None:
        self.running.pop(trial.trial_id, None)
        self._offer(trial)

    def noted_failure(self, trial: Trial, message: str) -> None:
        self.failures.pop(trial.trial_id, None)
        what = error_line(message)
        place = place_of(message)
        shown = f"{what} ({place})" if what and place else what
        self.failures[trial.trial_id] = FailureLine(trial, shown)
        cause = f"{what.partition(':')[0]} {place}" if place else what
        if cause not in self._causes and len(self._causes) >= KEPT_CAUSES:
            cause, shown = UNKNOWN_CAUSE, UNKNOWN_CAUSE
        self._causes.setdefault(cause, shown)
        self._cause_of[trial.trial_id] = cause
        if len(self.failures) > KEPT_FAILURES:
            del self.failures[next(iter(self.failures))]

    def causes(self, trials: Iterable[Trial]) -> list[tuple[str, int]]:
        """Return why trials failed in the end, the most frequent reason first."""
        counted = Counter(
            self._cause_of.get(trial.trial_id, "") for trial in trials if trial.status == "ERROR"
        )
        return [(self._causes.get(cause, ""), count) for cause, count in counted.most_common()]

    def failure_message(self, trial: Trial) -> str:
        failure = self.failures.get(trial.trial_id)
        return failure.message if failure is not None else ""

    @property
    def finished(self) -> int:
        return self.terminated + self.errored

    def move_paused(self) -> None:
        """Move paused trials before a snapshot, because no hook reports a pause."""
        for trial in [trial for trial in self.running.values() if trial.status in ("PAUSED", "PENDING")]:
            del self.running[trial.trial_id]
            if trial.status == "PAUSED":  # else it was suspended, for want of money or time
                self.paused[trial.trial_id] = trial
            self._offer(trial)

    def counts(self, created: int, starting: int = 0) -> dict[str, int]:
        """Return trials per status, in the order in which statuses are shown; `starting` of the pending."""
        known = len(self.running) + len(self.paused) + self.finished
        pending = max(0, created - known)
        starting = min(starting, pending)
        numbers = (len(self.running), self.terminated, len(self.paused), pending - starting, self.errored)
        counted = dict(zip(STATUSES, numbers, strict=True))
        return {STARTING: starting, **counted} if starting else counted

    def ranked(self, count: int) -> list[ScoreRank]:
        """Return the best trials by their last result, running ones among them."""
        if self.metric is None:
            return []
        live = [
            ScoreRank(key, trial.number, trial)
            for trial in self.running.values()
            if (key := self._key(trial)) is not None
        ]
        if not live:
            return self.best[:count]
        return sorted([*live, *self.best[:count]], key=_order)[:count]

    def front(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that no other one beats in all objectives, running ones among them.

        Once none runs, all are compared: one that continued may have become worse than others before it.
        """
        candidates = [*self._front, *self.running.values()] if self.running else [*trials]
        return self._front_of(candidates) if self._objectives else []

    def _front_of(self, trials: list[Trial]) -> list[Trial]:
        wanted = {**self._objectives, **self._constraints}
        found = [{key: lookup(trial.last_result, key) for key in wanted} for trial in trials]
        rows = [[values[key] for key in self._objectives] for values in found]
        places = pareto_front(rows, [*self._objectives.values()], found, self._constraints)
        return [trials[place] for place in places]

    def value(self, scored: ScoreRank) -> float:
        return -scored.key[1] if self._mode == "max" else scored.key[1]

    def _offer(self, trial: Trial) -> None:
        if self._objectives:
            self._front = self._front_of([*(one for one in self._front if one is not trial), trial])
        if self.metric is None:
            return
        key = self._key(trial)
        best = self.best
        if key is None or (len(best) == KEPT_BEST and (key, trial.number) >= _order(best[-1])):
            return
        self._withdraw(trial)
        insort(self.best, ScoreRank(key, trial.number, trial), key=_order)
        del self.best[KEPT_BEST:]

    def _withdraw(self, trial: Trial) -> None:
        """Remove a trial that continues from those that wait with their result."""
        self._front = [one for one in self._front if one is not trial]
        if any(each.trial is trial for each in self.best):
            self.best = [each for each in self.best if each.trial is not trial]

    def _key(self, trial: Trial) -> tuple[bool, float] | None:
        score = rank_key(lookup(trial.last_result, self.metric or ""), self._mode)
        known = {name: lookup(trial.last_result, name) for name in self._constraints}
        return None if score is None else (any(violations(known, self._constraints)), score)


def _order(scored: ScoreRank) -> tuple[tuple[bool, float], int]:
    return scored[:2]


def lookup(values: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - a user's value
    """Return a value by its flat key, `a/b` for `{"a": {"b": ...}}`; None when it is not there."""
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


def place_of(traceback: str) -> str:
    """Return `file.py:12`, where the user's code failed: the innermost place outside of libraries."""
    places = PLACE.findall(traceback)
    own = [each for each in places if is_own(each[0])]
    for file, line in reversed(own or places):
        return f"{file.rpartition('/')[2]}:{line}"
    return ""


def is_own(file: str) -> bool:
    """Return whether a file of a traceback is the user's, not a library's."""
    return not any(part in file for part in _LIBRARIES)


def error_line(text: str) -> str:
    """Return what happened: the first line after the frames of a traceback; the last line of other texts."""
    _, header, after = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in after.splitlines() if line.strip(" |+-")]  # the marks of an exception group
    raised = [at for at, line in enumerate(lines) if header and not line[0].isspace()]
    if not raised:
        return printable(lines[-1].strip(" |+-\t")) if lines else ""
    line, *rest = (each.strip() for each in lines[raised[0] :])
    return printable(f"{line} {rest[0]}" if line.endswith(":") and rest else line)
