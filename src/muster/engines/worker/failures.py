"""Make a TrialFailure from a worker's report, from the kernel's, or from what the engine did itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from muster.base.untrusted import error_text
from muster.engines.worker.protocol import ExitReport
from muster.trials.events import TrialFailure
from muster.trials.events import TrialFailureKind as Kind

STOPPED = (
    "trial %s does nothing: its process (pid %d) was stopped by a signal. It fails in %.0f s unless you "
    "continue the process: kill -CONT %d"
)
OVERDUE = (
    "trial %s did not stop in time, so muster kills its process (pid %d); to give trials longer while others "
    "run, raise TUNE_FORCE_TRIAL_CLEANUP_S"
)
_HELPER_DIED = "the fork server has died, and this trial with it"


class ExitReader:
    """Separates kills for lack of memory from other kills, by the kernel's counter."""

    def __init__(self, oom_kills: Callable[[], int]) -> None:
        self._oom_kills = oom_kills
        self._seen = oom_kills()

    def failure_of_status(self, status: int | None, note: str = "") -> TrialFailure:
        """Return the failure of a process that ended without a report; a status of None was not seen."""
        if note:
            return TrialFailure(kind=Kind.START, message=note)
        if status is None:
            return TrialFailure(kind=Kind.KILLED, message=_HELPER_DIED)
        if not os.WIFSIGNALED(status):
            return exit_code_failure(os.waitstatus_to_exitcode(status))
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            before, self._seen = self._seen, self._oom_kills()
            if self._seen > before:
                message = "the kernel killed the process because memory ran out"
                return TrialFailure(kind=Kind.OUT_OF_MEMORY, message=message)
        return signal_failure(number)


def reported_failure(report: ExitReport) -> TrialFailure | None:
    """Return the failure in the worker's own report; None when there is none."""
    if report.kind is None:
        return None
    return TrialFailure(
        kind=Kind(report.kind), message=report.message, traceback=report.traceback, exception=report.exception
    )


def exit_code_failure(code: int) -> TrialFailure:
    """Return the failure of a process that left with an exit code."""
    message = f"the process left with exit code {code} without a report (os._exit, or a crash in C code)"
    return TrialFailure(kind=Kind.EXITED, message=message)


def signal_failure(number: int, traceback: str = "") -> TrialFailure:
    """Return the failure of a process that a signal ended."""
    name = next((each.name for each in signal.Signals if each == number), "?")
    message = f"killed by signal {number:d} ({name})"
    return TrialFailure(kind=Kind.KILLED, message=message, traceback=traceback)


def time_limit_failure(limit_s: float) -> TrialFailure:
    return TrialFailure(kind=Kind.TIME_LIMIT, message=f"ran longer than its limit of {limit_s:g} s")


def silence_failure(limit_s: float, pid: int, *, is_stopped: bool) -> TrialFailure:
    message = f"no heartbeat and no processor time for {limit_s:g} s: stuck in the kernel"
    if is_stopped:
        message = f"its process (pid {pid}) was stopped by a signal and not continued within {limit_s:g} s"
    return TrialFailure(kind=Kind.SILENT, message=message)


def impossible_failure(why: str) -> TrialFailure:
    return TrialFailure(kind=Kind.START, message=f"can never start: {why}")


def unpicklable_failure(what: str, error: BaseException) -> TrialFailure:
    return TrialFailure(kind=Kind.UNPICKLABLE, message=f"{what}: {error_text(error)}")
