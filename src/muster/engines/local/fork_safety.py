"""Find out whether forking is safe here, and sets right what a forked process must not share."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from muster.base.clock import SystemClock
from muster.engines.worker.main import note_log_handlers

# A fork is safe under these threads: jemalloc, which pyarrow contains, and Arrow's pools of unnamed threads
# hold their locks during a fork, and continue without the threads in the child.
_SAFE_NAME = "jemalloc_bg_thd"
_SAFE_LIBRARY = "libarrow."
_RUNTIMES = ("libc.so", "libc-", "libpthread", "ld-linux", "libstdc++", "libgcc", "python", "libpython")
_THREADS = "/proc/self/task"
_STACK_BYTES = 2048  # a wait takes some hundred
_LOOKS, _LOOK_S = 20, 0.01  # on a busy machine, threads that have little to do run late


def why_not_fork() -> str:
    """Return what makes a fork unsafe here (Linux): a thread and its origin, or a GPU; "" if it is safe."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            origin = getattr(getattr(thread, "_target", None), "__module__", None) or type(thread).__module__
            return f"{origin} has started the thread {thread.name!r}"
    if _has_opened_gpu():
        return "a GPU is open"
    if len(os.listdir(_THREADS)) > 1:
        # Libraries that know about fork (such as OpenBLAS) end their threads before one: fork once and look.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return next(filter(None, map(_why_unsafe, os.listdir(_THREADS))), "")


def _why_unsafe(thread_id: str) -> str:
    """Return the name and library of a native thread, or "" if a fork is known to be safe under it."""
    if int(thread_id) == os.getpid():
        return ""
    name = library = ""
    try:
        name, own_name = (_text(f"{_THREADS}/{each}/comm").strip() for each in (thread_id, os.getpid()))
        library = _library_of(thread_id)
    except (OSError, ValueError, LookupError):
        own_name = ""  # this kernel does not show it, or the thread is running
    if name == _SAFE_NAME or (name == own_name and library.startswith(_SAFE_LIBRARY)):
        return ""
    return f"{library or 'an unknown library'} has started a thread ({name})"


def _library_of(thread_id: str) -> str:
    """Return the library in whose code a thread waits: the first on its stack that is not a runtime's."""
    maps = [line.split(None, 5) for line in _text("/proc/self/maps").splitlines()]
    code = [(*line[0].split("-"), line[5]) for line in maps if "x" in line[1] and len(line) > 5]
    places = [(int(start, 16), int(end, 16), os.path.basename(path)) for start, end, path in code]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(_stack_of(thread_id))
        words = memoryview(memory.read(_STACK_BYTES)).cast("Q")
    names = (name for word in words for start, end, name in places if start <= word < end)
    return next((name for name in names if not name.startswith(_RUNTIMES)), "")


def _stack_of(thread_id: str) -> int:
    """Return where the stack of a thread ends; one that runs shows that only once it waits again."""
    for _ in range(_LOOKS):
        if (words := _text(f"{_THREADS}/{thread_id}/syscall").split()) != ["running"]:
            break
        SystemClock().sleep(_LOOK_S)
    return int(words[-2], 16)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _has_opened_gpu() -> bool:
    """Return whether a GPU device is open: CUDA and ROCm cannot be used after a fork then."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            return True
    return False


def be_killed_first() -> None:
    """Make the kernel choose this process and its children, not the driver, when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as stream:
            stream.write(b"500")
    except OSError:
        return  # not allowed here: then the kernel chooses


def needs_fresh_randomness() -> bool:
    """Return whether forks of this process have to call `fresh_randomness`."""
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


_KNOWN = ((3, 10), (3, 11), (3, 12))

_is_our_fork = [False]  # only during a fork by `fork_of_ours`


def fork_with_short_hooks(fork: Callable[[], int]) -> int:
    """Call `fork()`, with short hooks if `shorten_hooks` has been called."""
    _is_our_fork[0] = True
    try:
        return fork()
    finally:
        _is_our_fork[0] = False  # in both


def shorten_hooks() -> None:
    """Shorten the standard library's fork hooks, with one thread only; again after user code was loaded."""
    if sys.version_info[:2] not in _KNOWN or sys.implementation.name != "cpython":
        return
    has_other_threads = len(threading._dangling) > 1  # type: ignore[attr-defined]  # not begun, or ended
    _shorten(threading._after_fork, None if has_other_threads else _threads_are_as_they_were)  # type: ignore[attr-defined]
    logging = sys.modules.get("logging")
    if logging is not None:
        _shorten(logging._after_at_fork_child_reinit_locks, _logging_holds_one_lock)
        note_log_handlers(logging._handlerList)


def _shorten(hook: Any, short: Any) -> None:  # noqa: ANN401 - functions, whose parts are meant
    """Give a hook that the interpreter holds, and never releases, another body.

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
