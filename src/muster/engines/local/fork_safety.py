"""Finds out whether forking is safe here, and sets right what a forked process must not share."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from muster.engines.worker.main import note_log_handlers


def fork_is_safe() -> bool:
    """Returns whether no other thread survives a fork, no GPU is open, and the platform allows forks."""
    if not sys.platform.startswith("linux") or threading.active_count() > 1 or _has_opened_gpu():
        return False
    if _native_threads() > 1:
        # Libraries that know about fork (such as OpenBLAS) end their threads before one: fork once and count.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _native_threads() == 1


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _has_opened_gpu() -> bool:
    """Returns whether a GPU device is open: CUDA and ROCm cannot be used after a fork then."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return True
    return False


def be_killed_first() -> None:
    """Makes the kernel choose this process and its children, not the driver, when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as stream:
            stream.write(b"500")
    except OSError:
        return  # not allowed here: then the kernel chooses


def needs_fresh_randomness() -> bool:
    """Returns whether forks of this process have to call `fresh_randomness`."""
    return "numpy.random" in sys.modules


def fresh_randomness() -> None:
    """Gives numpy's global generator its own seed in each process, unless user code had seeded it.

    Python's `random` does so by itself after a fork; torch starts from a constant in any new process.
    """
    numpy_random = sys.modules.get("numpy.random")
    state = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if numpy_random is not None and state is not None:
        generator = getattr(state, "_bit_generator", None)
        if getattr(generator, "seed_seq", None) is not None:  # None after numpy.random.seed(...)
            numpy_random.seed()


_KNOWN = ((3, 10), (3, 11), (3, 12))

_is_our_fork = [False]  # only during a fork by `fork_of_ours`


def fork_with_short_hooks(fork: Callable[[], int]) -> int:
    """Calls `fork()`, with short hooks if `shorten_hooks` has been called."""
    _is_our_fork[0] = True
    try:
        return fork()
    finally:
        _is_our_fork[0] = False  # in both


def shorten_hooks() -> None:
    """Shortens the standard library's fork hooks, with one thread only; again after user code was loaded."""
    if sys.version_info[:2] not in _KNOWN or sys.implementation.name != "cpython":
        return
    has_other_threads = len(threading._dangling) > 1  # type: ignore[attr-defined]  # not begun, or ended
    _shorten(threading._after_fork, None if has_other_threads else _threads_are_as_they_were)  # type: ignore[attr-defined]
    logging = sys.modules.get("logging")
    if logging is not None:
        _shorten(logging._after_at_fork_child_reinit_locks, _logging_holds_one_lock)
        note_log_handlers(logging._handlerList)


def _shorten(hook: Any, short: Any) -> None:  # noqa: ANN401 - functions, whose parts are meant
    """Gives a hook that the interpreter holds, and never releases, another body.

    None gives the hook its own body back. A function that another library has put there is left alone.
    """
    if hook.__defaults__ is not None and hook.__defaults__[0] is _is_our_fork:
        hook.__code__, hook.__defaults__ = hook.__defaults__[1].__code__, None
    is_original = hook.__closure__ is None and hook.__code__.co_argcount == 0
    if short is not None and is_original and hook.__globals__ is vars(sys.modules[hook.__module__]):
        whole = FunctionType(hook.__code__, hook.__globals__, hook.__name__)
        hook.__code__, hook.__defaults__ = short.__code__, (_is_our_fork, whole)


# These two run with the globals of `threading` and `logging`.


def _threads_are_as_they_were(is_our_fork: list[bool], whole: Callable[[], None]) -> None:
    if not is_our_fork[0]:
        whole()


def _logging_holds_one_lock(is_our_fork: list[bool], whole: Callable[[], None]) -> None:
    if is_our_fork[0]:
        _lock._at_fork_reinit()  # type: ignore[name-defined] # noqa: F821 - taken before the fork
    else:
        whole()
