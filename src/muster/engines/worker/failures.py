"""Makes a TrialFailure from a worker's report, from the kernel's, or from what the engine did itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from muster.engines.worker.protocol import ExitReport
from muster.trials.events import TrialFailure, TrialFailureKind

_HELPER_DIED = "the helper process that watches over trials has died, and this trial with it"


class ExitReader:
    """An ExitReader separates kills for lack of memory from other kills, by the kernel's counter."""

    def __init__(self, oom_kills: Callable[[], int]) -> None:
        self._oom_kills = oom_kills
        self._seen = oom_kills()

    def failure_of_status(self, status: int | None, note: str = "") -> TrialFailure:
        """Returns the failure of a process that ended without a report; a status of None was not seen."""
        if note:
            return TrialFailure(kind=TrialFailureKind.START, message=note)
        if status is None:
            return TrialFailure(kind=TrialFailureKind.KILLED, message=_HELPER_DIED)
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            message = (
                f"the process left with exit code {code} without a report (os._exit, or a crash in C code)"
            )
            return TrialFailure(kind=TrialFailureKind.EXITED, message=message)
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and self._memory_ran_out():
            message = "the kernel killed the process because memory ran out"
            return TrialFailure(kind=TrialFailureKind.OUT_OF_MEMORY, message=message)
        return TrialFailure(
            kind=TrialFailureKind.KILLED, message=f"killed by signal {number} ({_name(number)})"
        )

    def _memory_ran_out(self) -> bool:
        before, self._seen = self._seen, self._oom_kills()
        return self._seen > before


def reported_failure(report: ExitReport) -> TrialFailure | None:
    """Returns the failure in the worker's own report; None when there is none."""
    if report.kind is None:
        return None
    return TrialFailure(
        kind=TrialFailureKind(report.kind),
        message=report.message,
        traceback=report.traceback,
        exception=report.exception,
    )


def sigterm_failure() -> TrialFailure:
    """Returns the failure of a trial that another program ended with SIGTERM."""
    number = int(signal.SIGTERM)
    return TrialFailure(kind=TrialFailureKind.KILLED, message=f"killed by signal {number} ({_name(number)})")


def time_limit_failure(limit_s: float) -> TrialFailure:
    return TrialFailure(
        kind=TrialFailureKind.TIME_LIMIT, message=f"ran longer than its limit of {limit_s:g} s"
    )


def silence_failure(limit_s: float) -> TrialFailure:
    message = f"no heartbeat and no processor time for {limit_s:g} s: stopped, or stuck in the kernel"
    return TrialFailure(kind=TrialFailureKind.SILENT, message=message)


def impossible_failure(why: str) -> TrialFailure:
    return TrialFailure(kind=TrialFailureKind.START, message=f"can never start: {why}")


def unpicklable_failure(what: str, error: BaseException) -> TrialFailure:
    return TrialFailure(kind=TrialFailureKind.UNPICKLABLE, message=f"{what}: {type(error).__name__}: {error}")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "?"
