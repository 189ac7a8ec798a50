"""Identify processes by id and start time, signals only those it has identified, and starts daemons.

A process id alone may belong to another process by now; with its start time it does not. Linux reads one line
of `/proc` for each process, other systems ask psutil (ADR 0017 has the reasons).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from muster.base.clock import Clock
from muster.host.machine import cpu_count

_PROC = "/proc"
POLL_S = 0.05
KILLED_S = 5.0
_ENDED = frozenset(("Z", "X", "zombie", "dead"))  # letters of the kernel, names of psutil


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """Names one process forever: no later one with the same id has the same mark."""

    pid: int
    started: str  # in the system's own unit; only compared
    boot: str = ""


class ProcessInfo(Struct, frozen=True, kw_only=True):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    state: str
    started: str
    name: str

    @property
    def is_alive(self) -> bool:
        return self.state not in _ENDED

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it; a process in a debugger is in another state."""
        return self.state in ("T", "stopped")


def find(pid: int) -> ProcessInfo | None:
    """Return the process with this id, zombies included; None when there is none."""
    return _from_proc(pid) if _has_proc() else _from_psutil(pid)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the mark of the process with this id; None when there is none."""
    process = find(pid)
    return None if process is None else ProcessIdentity(pid=pid, started=process.started, boot=boot_id())


def is_alive(mark: ProcessIdentity | None) -> bool:
    """Return whether exactly this process still runs."""
    if mark is None or mark.boot != boot_id():
        return False
    process = find(mark.pid)
    return process is not None and process.started == mark.started and process.is_alive


def table() -> list[ProcessInfo]:
    """Return every process that this user can see."""
    if _has_proc():
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    else:
        import psutil

        pids = psutil.pids()
    return [process for pid in pids if (process := find(pid)) is not None]


def was_started_with(pid: int, entry: str) -> bool:
    """Return whether the process was started with this `NAME=value`; False where that cannot be read."""
    if _has_proc():  # psutil would decode every variable of every process
        try:
            with open(f"{_PROC}/{pid}/environ", "rb") as stream:
                return entry.encode() in stream.read().split(b"\0")
        except OSError:
            return False
    import psutil

    name, _, value = entry.partition("=")
    try:
        return bool(psutil.Process(pid).environ().get(name) == value)
    except (psutil.Error, OSError):
        return False


def command_of(pid: int) -> list[str]:
    """Return the command line of the process; [] where it cannot be read."""
    if _has_proc():
        try:
            with open(f"{_PROC}/{pid}/cmdline", "rb") as stream:
                return stream.read().decode("utf-8", "replace").split("\0")[:-1]
        except OSError:
            return []
    import psutil

    try:
        return list(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return []


def send(processes: Iterable[ProcessInfo], number: int) -> None:
    """Signal each process, except this one and those that have ended, whatever has their id now."""
    for process in processes:
        now = find(process.pid)
        if now is not None and now.started == process.started and process.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def boot_id() -> str:
    """Return which start of the computer this is: no process lives through the next one."""
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""  # elsewhere start times are points in time, which no two boots share


def is_busy() -> bool:
    """Return whether several processes wait for each processor."""
    return os.getloadavg()[0] > 4 * cpu_count()


def _has_proc() -> bool:
    return sys.platform.startswith("linux")


def _from_proc(pid: int) -> ProcessInfo | None:
    """Read start times in ticks since boot: psutil's points in time move when the clock is set."""
    try:
        with open(f"{_PROC}/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            before, _, after = stream.read().rpartition(")")
    except OSError:
        return None
    fields = after.split()
    if len(fields) < 20:
        return None
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        started=fields[19],
        name=before.partition("(")[2],
    )


def _from_psutil(pid: int) -> ProcessInfo | None:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return ProcessInfo(
                pid=pid,
                parent=process.ppid(),
                session=os.getsid(pid),
                state=process.status(),
                started=repr(process.create_time()),
                name=process.name(),
            )
    except (psutil.Error, OSError):
        return None


def start_daemon(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> int:
    """Return the process id of a new process, in a separate session: Ctrl-C does not reach it."""
    import subprocess  # here, because trial processes load this module and start no daemon

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


def end_process(mark: ProcessIdentity, *, clock: Clock, patience_s: float) -> bool:
    """Send SIGTERM, wait, then kill; return False when exactly this process was not running."""
    if not is_alive(mark):
        return False
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILLED_S)):
        found = find(mark.pid)
        send([found] if found is not None and is_alive(mark) else [], number)
        if _ends_within(wait_s, mark, clock):
            break
    return True


def _ends_within(patience_s: float, mark: ProcessIdentity, clock: Clock) -> bool:
    give_up = clock.monotonic() + patience_s
    while is_alive(mark):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)  # a child of this process would stay as a zombie
        if clock.monotonic() >= give_up:
            return False
        clock.sleep(POLL_S)
    return True
