"""How an actor's process ended, as far as it could say so itself: its exit code, or the signal of a crash.

Ray does not know how a process ended, so the process says it in the moment: `os._exit` sends its code, and
`faulthandler` writes the text of a crash, from C, to the same connection. Who dies without a word was killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
from typing import NoReturn

from muster.base.framing import Kind, frame, pack
from muster.trials.events import FailureKind, TrialFailure

_OPENING = "Fatal Python error: "
_CRASHES = {
    "Segmentation fault": "SIGSEGV",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
}


def speak_through(line: socket.socket) -> None:
    """In the actor: have the last words of this process sent there."""
    pid, leave = os.getpid(), os._exit

    def leave_with_a_word(status: int) -> NoReturn:
        if os.getpid() == pid:  # forks of the trial leave like that too
            with contextlib.suppress(OSError):
                line.sendall(frame(Kind.LEFT, pack(status)))
        leave(status)

    os._exit = leave_with_a_word
    faulthandler.disable()  # so that ours is the first handler, whoever else has set one meanwhile
    faulthandler.enable(file=line.fileno(), all_threads=False)


def of_exit_code(code: int) -> TrialFailure:
    message = f"the process left with exit code {code} without a word (os._exit, or a crash in C code)"
    return TrialFailure(kind=FailureKind.EXITED, message=message)


def of_crash(words: bytes) -> TrialFailure | None:
    """What `faulthandler` wrote; None when these are not such words."""
    text = words.decode(errors="replace")
    start = text.find(_OPENING)
    if start < 0:
        return None
    text = text[start:].rstrip()
    title = text[len(_OPENING) :].partition("\n")[0].strip()
    name = _CRASHES.get(title)
    if name is None:
        return TrialFailure(kind=FailureKind.EXITED, message=f"Python crashed: {title}", traceback=text)
    message = f"killed by signal {int(signal.Signals[name])} ({name})"
    return TrialFailure(kind=FailureKind.KILLED, message=message, traceback=text)


def killed() -> TrialFailure:
    """It ended without a word: only SIGKILL does that to a process."""
    return TrialFailure(kind=FailureKind.KILLED, message="killed by signal 9 (SIGKILL)")
