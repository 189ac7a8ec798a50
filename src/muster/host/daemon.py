"""Starts and ends processes that outlive the program which starts them; the launcher runs the monitor so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.base.clock import Clock
from muster.host import processes
from muster.host.processes import ProcessIdentity

POLL_S = 0.05
KILLED_S = 5.0


def start_daemon(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> int:
    """Returns the process id of a new process, in a session of its own: Ctrl-C does not reach it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "ab") as stream:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # it is to outlive this process: no warning that it still runs
    return process.pid


def end(mark: ProcessIdentity, *, clock: Clock, patience_s: float) -> bool:
    """Sends SIGTERM, waits, then kills; returns False when exactly this process was not running."""
    if not processes.is_alive(mark):
        return False
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILLED_S)):
        found = processes.find(mark.pid)
        processes.send([found] if found is not None and processes.is_alive(mark) else [], number)
        if wait_until_gone(mark, clock=clock, patience_s=wait_s):
            break
    return True


def wait_until_gone(mark: ProcessIdentity, *, clock: Clock, patience_s: float) -> bool:
    """Returns whether the process ended in time."""
    give_up = clock.monotonic() + patience_s
    while processes.is_alive(mark):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)  # a child of this process would stay as a zombie
        if clock.monotonic() >= give_up:
            return False
        clock.sleep(POLL_S)
    return True
