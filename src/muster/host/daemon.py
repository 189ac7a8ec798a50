"""A process that outlives its starter: the launcher starts and ends the monitor with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.base.clock import Clock
from muster.host import processes
from muster.host.processes import ProcessMark

POLL_S = 0.05
KILLED_S = 5.0


def start_daemon(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> int:
    """Its process id. In a session of its own, so that closing the terminal or Ctrl-C does not reach it."""
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
    process.returncode = 0  # it is to outlive us: nobody need warn that it still runs
    return process.pid


def end(mark: ProcessMark, *, clock: Clock, patience_s: float) -> bool:
    """Ask, wait, then kill; False when it was not there. Never touches a process that is another's."""
    if not processes.lives(mark):
        return False
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILLED_S)):
        found = processes.find(mark.pid)
        processes.send([found] if found is not None and processes.lives(mark) else [], number)
        if wait_until_gone(mark, clock=clock, patience_s=wait_s):
            break
    return True


def wait_until_gone(mark: ProcessMark, *, clock: Clock, patience_s: float) -> bool:
    give_up = clock.monotonic() + patience_s
    while processes.lives(mark):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)  # a child of ours would stay as a zombie
        if clock.monotonic() >= give_up:
            return False
        clock.sleep(POLL_S)
    return True
