"""Failure policy as functions: does this failure count, and is the trial tried again?"""

from __future__ import annotations

from muster.trials.events import FailureKind, TrialFailure
from muster.trials.model import FailurePolicy, Trial

# Nothing the trial did: the machine was taken away. Counted only when the user says so.
_NOT_ITS_FAULT = frozenset({FailureKind.PREEMPTED})
# Trying again would end the same way.
_FINAL = frozenset({FailureKind.RESET_REFUSED, FailureKind.UNPICKLABLE, FailureKind.START})


def counts(trial: Trial, failure: TrialFailure, policy: FailurePolicy, was_restoring: bool) -> bool:
    """Whether the failure uses up one of the trial's retries; restore failures have a budget of their own."""
    if was_restoring and trial.num_restore_failures < policy.restore_retries:
        return False
    return failure.kind not in _NOT_ITS_FAULT or policy.count_preemption


def may_retry(trial: Trial, failure: TrialFailure) -> bool:
    """`num_failures` has been brought up to date before."""
    if failure.kind in _FINAL:
        return False
    return trial.max_failures < 0 or trial.num_failures <= trial.max_failures
