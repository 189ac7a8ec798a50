"""Make a TrialFailure from how Ray reports an actor's end: node, memory, start, or a signal.

Works on the names and texts of Ray's exceptions, so that it can be tested without a cluster.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
from typing import TYPE_CHECKING, NoReturn

from muster.base.framing import FrameKind, frame, pack
from muster.engines.worker.failures import signal_failure
from muster.trials.events import TrialFailure
from muster.trials.events import TrialFailureKind as Kind

if TYPE_CHECKING:
    from muster.engines.ray.tls import TlsTunnel

LAST_BYTES_S = 1.0  # how long a process that ends waits for them to be sent
_OPENING = "Fatal Python error: "
_CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
}


def report_death_through(connection: socket.socket, tls: TlsTunnel | None) -> None:
    """Send the exit code or the crash text of this process, an actor, over the connection.

    A process that crashes encrypts nothing more: with TLS its crash text stays in its log.
    """
    pid, leave = os.getpid(), os._exit

    def report_and_exit(status: int) -> NoReturn:
        if os.getpid() == pid:  # forks of the trial leave like that too
            with contextlib.suppress(OSError):
                connection.sendall(frame(FrameKind.LEFT, pack(status)))
                if tls is not None:
                    tls.flush(LAST_BYTES_S)
        leave(status)

    os._exit = report_and_exit
    if tls is not None:
        return
    faulthandler.disable()  # so that this handler is the first, even if another library has set one
    faulthandler.enable(file=connection.fileno(), all_threads=False)


def crash_failure(output: bytes) -> TrialFailure | None:
    """Return the failure that `faulthandler` wrote; None when the output is something else."""
    text = output.decode(errors="replace")
    begin = text.find(_OPENING)
    if begin < 0:
        return None
    text = text[begin:].rstrip()
    title = text[len(_OPENING) :].partition("\n")[0].strip()
    number = _CRASHES.get(title)
    if number is None:
        return TrialFailure(kind=Kind.EXITED, message=f"Python crashed: {title}", traceback=text)
    return signal_failure(number, traceback=text)


_NODE_LOST_TEXTS = (
    *("node has died", "node died", "node was terminated", "its node", "node is dead"),
    *("node failure", "NODE_DIED"),
)
_START_NAMES = ("RuntimeEnvSetupError", "ActorUnschedulableError", "ActorPlacementGroupRemoved")
_MOST_CHARACTERS = 800
_PREEMPTED = TrialFailure(
    kind=Kind.PREEMPTED, message="its node was taken back (preempted) while the trial ran"
)


def is_actor_unavailable(outcome: BaseException) -> bool:
    """Return whether Ray does not know yet if the actor lives."""
    return type(outcome).__name__ == "ActorUnavailableError"


def outcome_failure(
    outcome: BaseException | None, *, was_draining: bool = False, uses_tls: bool = False
) -> TrialFailure:
    """Return the failure behind the outcome of an actor's call; None: the call returned.

    `was_draining`: its node was to go. Ray drains a node that runs something only to take it back, and sets
    `preempted` only as long as it does not know that the node is dead.
    """
    if outcome is None:
        return TrialFailure(kind=Kind.EXITED, message="the actor ended before the trial did")
    text, name = str(outcome), type(outcome).__name__
    if getattr(outcome, "preempted", False):
        return _PREEMPTED
    if "OutOfMemory" in name or "OOM" in name or "memory monitor" in text or "memory pressure" in text:
        message = f"Ray ended the process because memory ran out: {_summary(text)}"
        return TrialFailure(kind=Kind.OUT_OF_MEMORY, message=message)
    if name in ("NodeDiedError", "ActorUnavailableError") or any(part in text for part in _NODE_LOST_TEXTS):
        if was_draining:
            return _PREEMPTED
        return TrialFailure(kind=Kind.NODE_LOST, message=f"its node went away: {_summary(text)}")
    if name in _START_NAMES or getattr(outcome, "_actor_init_failed", False):
        return start_failure(_summary(text))
    if name == "ActorDiedError" or "actor died" in text:
        return _death_failure(text, uses_tls)
    return start_failure(_summary(text))


def _death_failure(text: str, uses_tls: bool) -> TrialFailure:
    if "ray.kill" in text:
        return TrialFailure(kind=Kind.KILLED, message="its actor was ended by ray.kill in another program")
    if "SIGTERM" in text:
        return signal_failure(signal.SIGTERM)
    if uses_tls:
        message = "killed by a signal, or crashed in C code: with TLS only the log of its actor says which"
        return TrialFailure(kind=Kind.KILLED, message=message)
    return signal_failure(signal.SIGKILL)  # nothing else ends a process without a report


def start_failure(why: str) -> TrialFailure:
    return TrialFailure(kind=Kind.START, message=f"its actor could not start: {why}")


def _summary(text: str) -> str:
    """Return Ray's text on one line, without the identifiers and the page of advice around it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    short = " ".join(lines)
    return short if len(short) <= _MOST_CHARACTERS else short[:_MOST_CHARACTERS] + "..."
