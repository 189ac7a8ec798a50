"""Runs in another process: runs a command, and kills what it started when the command or the caller ends.

Where no process of muster is above a trial, as in an actor of Ray, its command runs below this one. The
arguments are `sys.path`, a pipe that the caller holds open, and the command.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from muster.host.die_with_parent import adopt_orphans, end_children
from muster.host.machine import boot_code, environment

_LOOK_MS = 200  # where the system does not report the end of a process
_FOR_COMMAND = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def start_guarded(words: Sequence[str], *, env: Mapping[str, str], **how: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start a command below a guard, which kills it when `release` was called or this process has ended."""
    read_fd, write_fd = os.pipe()
    path = "\n".join(entry for entry in sys.path if entry)
    boot = [sys.executable, "-c", boot_code("muster.host.tree_guard"), path, str(read_fd), *words]
    try:
        process = subprocess.Popen(boot, env=dict(env), pass_fds=[read_fd], **how)
    except BaseException:
        os.close(write_fd)
        raise
    finally:
        os.close(read_fd)
    process.guard_pipe = write_fd  # type: ignore[attr-defined]
    return process


def release(process: subprocess.Popen[bytes]) -> None:
    """Let a guard end; a process without one stays as it is."""
    pipe = vars(process).pop("guard_pipe", None)
    if pipe is not None:
        os.close(pipe)


def main() -> NoReturn:
    """Run the command, and end as it ended."""
    pipe, words = int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(pipe, False)
    adopt_orphans()
    for name in _FOR_COMMAND:  # the command got the signal too; unlike SIG_IGN, it inherits no handler
        signal.signal(signal.Signals[name], lambda number, where: None)
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        node, path = os.uname().nodename, environment().get("PATH", "")
        sys.stderr.write(f"{words[0]}: {error.strerror} on {node} (PATH={path}); install it there\n")
        os._exit(127)
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        poller.register(os.pidfd_open(process.pid), select.POLLIN)
        poller.poll()
    else:
        while process.poll() is None and not poller.poll(_LOOK_MS):
            continue
    code = process.poll()
    end_children()
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(1 if code is None else code)
