"""Processes of this computer, as values: who they are, which session they belong to, when they started.

A process id alone may be somebody else's by now; with its start time it is not. Linux reads `/proc`, other
systems ask `ps`. Signals are sent only through `send`, to processes that were identified here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

from msgspec import Struct

_PROC = "/proc"
_GONE = frozenset("ZX")  # a zombie has ended; only its parent has not looked yet
_PS = ("ps", "-axo", "pid=,ppid=,pgid=,state=,lstart=,comm=")


class ProcessMark(Struct, frozen=True, kw_only=True):
    """One process, for ever: no later one with the same id has the same mark."""

    pid: int
    started: str  # in the system's own words; only compared
    boot: str = ""


class ProcessInfo(Struct, frozen=True, kw_only=True):
    """One line of the process table."""

    pid: int
    parent: int
    group: int
    session: int  # where the system does not tell it: the group
    state: str
    started: str
    name: str

    @property
    def lives(self) -> bool:
        return self.state not in _GONE


def find(pid: int) -> ProcessInfo | None:
    """The process with this id, zombies included; None when there is none."""
    if _has_proc():
        return _from_proc(pid)
    return next((process for process in table() if process.pid == pid), None)


def mark_of(pid: int) -> ProcessMark | None:
    """How to know this process again; None when there is none."""
    process = find(pid)
    return None if process is None else ProcessMark(pid=pid, started=process.started, boot=boot_id())


def lives(mark: ProcessMark | None) -> bool:
    """Whether exactly this process still runs."""
    if mark is None or mark.boot != boot_id():
        return False
    process = find(mark.pid)
    return process is not None and process.started == mark.started and process.lives


def table() -> list[ProcessInfo]:
    """Every process that can be seen."""
    if not _has_proc():
        return _from_ps()
    found = (_from_proc(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [process for process in found if process is not None]


def environment_says(pid: int, entry: str) -> bool:
    """Whether the process was started with this `NAME=value`; False where the system does not tell."""
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as stream:
            return entry.encode() in stream.read().split(b"\0")
    except OSError:
        return False


def send(processes: Iterable[ProcessInfo], number: int) -> None:
    """Signal each; one that ended meanwhile or changed its id's owner is left alone."""
    for process in processes:
        now = find(process.pid)
        if now is not None and now.started == process.started and process.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def interrupt(pid: int) -> None:
    """SIGTERM to one process of our own making."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def boot_id() -> str:
    """Which start of the computer this is: after the next one, no process of today's lives."""
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def memory_bytes() -> int:
    """Physical memory; 0 when unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def cpu_count() -> int:
    """The processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_busy() -> bool:
    """Whether several processes wait for each processor."""
    return os.getloadavg()[0] > 4 * cpu_count()


def _has_proc() -> bool:
    return sys.platform.startswith("linux")


def _from_proc(pid: int) -> ProcessInfo | None:
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
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
        started=fields[19],
        name=before.partition("(")[2],
    )


def _from_ps() -> list[ProcessInfo]:
    said = subprocess.run(
        _PS, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": os.defpath}
    )
    return [process for line in said.stdout.splitlines() if (process := parse_ps(line)) is not None]


def parse_ps(line: str) -> ProcessInfo | None:
    """One line of `ps`: three numbers, the state, a date of five words, the command."""
    words = line.split(None, 9)
    if len(words) < 10 or not all(word.isdigit() for word in words[:3]):
        return None
    return ProcessInfo(
        pid=int(words[0]),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[2]),
        state=words[3][:1],
        started=" ".join(words[4:9]),
        name=os.path.basename(words[9]),
    )
