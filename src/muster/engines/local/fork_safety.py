"""Whether forking is safe here, and what a new process must set right. Used by zygote and worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGKILL = int(getattr(signal, "SIGKILL", 9))


def fork_is_safe() -> bool:
    """No other thread that survives a fork request, no GPU opened, and a platform whose libraries bear it."""
    if not sys.platform.startswith("linux") or threading.active_count() > 1 or _has_opened_gpu():
        return False
    if _native_threads() > 1:
        # Libraries that know about fork (OpenBLAS, say) end their threads before one: fork once and look.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _native_threads() == 1


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _has_opened_gpu() -> bool:
    """CUDA and ROCm cannot be used after a fork once a device has been opened."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return True
    return False


_prctl: list[Any] = []


def prepare_death_signal() -> None:
    """Load libc once, before forking, so that children need not."""
    if sys.platform.startswith("linux") and not _prctl:
        import ctypes

        prctl = ctypes.CDLL(None).prctl  # without argtypes: two small numbers need no conversion objects
        prctl(_PR_SET_PDEATHSIG, 0)  # the first call is the slow one: not in every child
        _prctl.append(prctl)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent ends (Linux); elsewhere the heartbeat thread notices."""
    if not _prctl:
        prepare_death_signal()
    if _prctl:
        _prctl[0](_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended before we asked


def be_killed_first() -> None:
    """When memory runs out the kernel shall take the zygote's children, or itself, but not the driver."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"500")
    except OSError:
        pass  # not allowed here: then the kernel chooses
    finally:
        os.close(fd)


def needs_fresh_randomness() -> bool:
    """Whether forks of this process have to call `fresh_randomness`."""
    return "numpy.random" in sys.modules


def fresh_randomness() -> None:
    """Give numpy's global generator its own seed in each process, unless user code had seeded it.

    Python's `random` does so by itself after a fork; torch starts from a constant in any new process.
    """
    numpy_random = sys.modules.get("numpy.random")
    state = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if numpy_random is not None and state is not None:
        generator = getattr(state, "_bit_generator", None)
        if getattr(generator, "seed_seq", None) is not None:  # None after numpy.random.seed(...)
            numpy_random.seed()
