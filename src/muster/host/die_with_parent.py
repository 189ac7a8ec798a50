"""End this process when its parent ends, and adopt and end what its descendants leave behind.

Every process of a trial loads this file: few imports.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = int(getattr(signal, "SIGKILL", 9))
_prctl: list[Any] = []


def prepare_death_signal() -> None:
    """Load libc once, before forking, so that children need not."""
    if sys.platform.startswith("linux") and not _prctl:
        import ctypes

        prctl = ctypes.CDLL(None).prctl  # without argtypes: two small numbers need no conversion objects
        prctl(_PR_SET_PDEATHSIG, 0)  # the first call is the slow one: not in every child
        _prctl.append(prctl)


def kill_group(pid: int) -> None:
    """End everything that the worker with this pid has started, and the worker itself."""
    try:  # noqa: SIM105 - `contextlib` is one more import in the fork server
        os.killpg(pid, _SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, and has started nothing


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when its parent ends (Linux); elsewhere the heartbeat thread ends it."""
    if not _prctl:
        prepare_death_signal()
    if _prctl:
        _prctl[0](_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent ended before the call


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, in any session (Linux)."""
    if not _prctl:
        prepare_death_signal()
    if _prctl:
        _prctl[0](_PR_SET_CHILD_SUBREAPER, 1)


def has_children() -> bool:
    """Return whether this process has children, ended ones that were not waited for included.

    On Linux also those of its descendants whose parent has ended: it has adopted them.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """Return the children of this process, ended and adopted ones included; [] elsewhere than on Linux."""
    if not _prctl or not has_children():  # the second is the usual case, and cheap
        return []
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as stream:
                found += map(int, stream.read(-1).split())
    except OSError:  # a kernel without that file
        own = os.getpid()
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent_of(name) == own]
    return found


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def end_children(most: int = 1 << 20) -> None:
    """Kill the children of this process, and those it adopts meanwhile, until none or `most` have ended."""
    while most and any([kill(pid) for pid in children()]):  # noqa: C419 - all of them, not up to the first
        most -= 1
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            continue  # another thread was faster


def kill(pid: int) -> bool:
    """Kill that process; returns False when there is none, or another user's."""
    try:
        os.kill(pid, _SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
