"""Ends this process when its parent ends. Every process of a trial loads this file: few imports."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGKILL = int(getattr(signal, "SIGKILL", 9))
_prctl: list[Any] = []


def prepare_death_signal() -> None:
    """Loads libc once, before forking, so that children need not."""
    if sys.platform.startswith("linux") and not _prctl:
        import ctypes

        prctl = ctypes.CDLL(None).prctl  # without argtypes: two small numbers need no conversion objects
        prctl(_PR_SET_PDEATHSIG, 0)  # the first call is the slow one: not in every child
        _prctl.append(prctl)


def die_with_parent(parent_pid: int) -> None:
    """Has this process killed when its parent ends (Linux); elsewhere the heartbeat thread ends it."""
    if not _prctl:
        prepare_death_signal()
    if _prctl:
        _prctl[0](_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent ended before the call
