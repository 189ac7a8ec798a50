"""Decide what a trial still does on a machine that will be taken: finish, save and move, or only move.

Pure. Called by Lifecycle and ExperimentState with the times of events, so that a restore decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster.session.session import EMPTIED, PreemptionInfo
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.trials.metrics import is_number
from muster.trials.model import Trial

AFTER_S = 2.0  # after the deadline a trial is moved: what it sent before the deadline has arrived by then
MARGIN = 1.25  # a step may take so much longer than the slowest one so far
# The machine is gone, or does not answer: that is what was announced.
_GONE = frozenset({TrialFailureKind.NODE_LOST, TrialFailureKind.SILENT})
# So do processes end when their machine is shut down; before the deadline there may be another reason.
_ENDED = frozenset({TrialFailureKind.KILLED, TrialFailureKind.EXITED})
WORTH_A_MOVE_S = 10.0  # a trial that ends sooner is not moved to save money: it would still be starting
_EARLY_S = 5.0  # clocks of two machines, and a machine that goes a little too early


class Preemptions:
    """Holds what is announced about the machines of running trials."""

    def __init__(self) -> None:
        self.announced: dict[str, PreemptionInfo] = {}  # by trial
        self.unsavable: set[str] = set()  # trials that had nothing to save when they were asked
        self._told: set[str] = set()  # trials of which a loss was reported

    def note(self, trial_id: str, info: PreemptionInfo | None) -> None:
        """Take what is announced for the machine of a trial; None: it stays after all."""
        if info is None:
            self.forget(trial_id)
        else:
            self.announced[trial_id] = info

    def forget(self, trial_id: str) -> None:
        """Forget a trial whose process has ended, or whose machine stays."""
        if self.announced.pop(trial_id, None) is not None:
            self.unsavable.discard(trial_id)
            self._told.discard(trial_id)

    def leaves(self, trial: Trial, at: float) -> bool:
        """Return whether the trial should continue elsewhere: it cannot finish before its machine goes."""
        info = self.announced.get(trial.trial_id)
        if info is None:
            return False
        left_s = info.left_s(at)
        if info.kind == EMPTIED:  # every second that it stays is paid for; the deadline is only the last one
            left_s = min(left_s, WORTH_A_MOVE_S)
        return not can_finish(trial, left_s)

    def may_save(self, trial: Trial, at: float) -> bool:
        """Return whether a checkpoint fits into what is left; one that was never made is tried."""
        info = self.announced.get(trial.trial_id)
        if info is None or trial.trial_id in self.unsavable:
            return False
        return trial.save_s is None or trial.save_s <= info.left_s(at)

    def loss_of(self, trial: Trial, at: float) -> str | None:
        """Return, once per announcement, why a trial under notice is not saved; None when it can be."""
        info = self.announced.get(trial.trial_id)
        if info is None or trial.trial_id in self._told or self.may_save(trial, at):
            return None
        self._told.add(trial.trial_id)
        where = (
            f"trial {trial.trial_id}: its machine {info.node_id or '?'} is taken in {info.left_s(at):.0f} s"
        )
        if trial.trial_id in self.unsavable:
            return f"{where}, and it saves only what it reports: report a checkpoint when should_checkpoint()"
        return (
            f"{where}, and its last checkpoint took {trial.save_s:.1f} s: no further one is made there; save "
            "less, or more often"
        )

    def overdue(self, at: float) -> Iterator[tuple[str, PreemptionInfo]]:
        """Yield the trials whose machine should be gone by now."""
        for trial_id, info in tuple(self.announced.items()):
            if info.left_s(at) <= -AFTER_S:
                yield trial_id, info

    def explained(self, trial: Trial, failure: TrialFailure, at: float) -> TrialFailure:
        """Return the failure, as a preemption where that is what was announced."""
        info = self.announced.get(trial.trial_id)
        if info is None:
            return failure
        is_ended = failure.kind in _ENDED and info.left_s(at) <= _EARLY_S
        if failure.kind not in _GONE and not is_ended:
            return failure
        message = f"its machine was taken, as announced ({info.kind}): {failure.message}"
        return TrialFailure(kind=TrialFailureKind.PREEMPTED, message=message, traceback=failure.traceback)

    def saved(self) -> dict[str, Any]:
        """Return everything as plain data, for the snapshot."""
        return {
            "announced": {trial_id: list(info) for trial_id, info in self.announced.items()},
            "unsavable": sorted(self.unsavable),
            "told": sorted(self._told),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take what `saved` returned."""
        self.announced = {trial_id: PreemptionInfo(*info) for trial_id, info in saved["announced"].items()}
        self.unsavable, self._told = set(saved["unsavable"]), set(saved["told"])


def can_finish(trial: Trial, left_s: float) -> bool:
    """Return whether the trial ends by its own criterion within this time, at its slowest pace so far.

    Without a deadline it cannot be known, and a trial that has not reported yet says nothing.
    """
    rest_s = rest_of(trial)
    if rest_s is None or left_s == float("inf"):
        return False
    return rest_s * MARGIN + (trial.save_s or 0.0) <= left_s


def rest_of(trial: Trial) -> float | None:
    """Return the seconds until the trial reaches a criterion of time or iterations; None: unknown."""
    last, criterion = trial.last_result, trial.stopping_criterion
    known: list[float] = []
    slowest_s = trial.metric_analysis.get("time_this_iter_s", {}).get("max")
    if not is_number(slowest_s):
        return None
    most_s, total_s = criterion.get("time_total_s"), last.get("time_total_s")
    if is_number(most_s) and is_number(total_s):
        known.append(most_s - total_s + slowest_s)  # the step that reaches it ends after it
    most, done = criterion.get("training_iteration"), last.get("training_iteration")
    if is_number(most) and is_number(done):
        known.append((most - done) * slowest_s)
    return max(0.0, min(known)) if known else None
