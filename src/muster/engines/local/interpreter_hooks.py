"""What Python's library does after every fork and at every exit, cut short where it has nothing to do.

Used by the zygote and its forks only. `threading` and `logging` put their locks right after a fork, because
some other thread may have held them. The zygote has no other thread, so nothing is wrong there; but looking
through everything touches some hundred pages, and each new process pays for a copy of each. Forks that trials
make themselves go the whole way, as do Pythons whose library is not known here to behave like that.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

_KNOWN = ((3, 10), (3, 11), (3, 12))

_is_our_fork = [False]  # only during a fork by `fork_of_ours`
_log_handlers: list[Any] = []  # of `logging`; the first is there from the beginning and writes to stderr


def fork_of_ours(fork: Callable[[], int]) -> int:
    """`fork()`, with short hooks if `shorten_hooks` has been called."""
    _is_our_fork[0] = True
    try:
        return fork()
    finally:
        _is_our_fork[0] = False  # in both


def shorten_hooks() -> None:
    """Before the first fork, with one thread only; again after user code was loaded."""
    if sys.version_info[:2] not in _KNOWN or sys.implementation.name != "cpython":
        return
    has_other_threads = len(threading._dangling) > 1  # type: ignore[attr-defined]  # not begun, or ended
    _shorten(threading._after_fork, None if has_other_threads else _threads_are_as_they_were)  # type: ignore[attr-defined]
    logging = sys.modules.get("logging")
    if logging is not None:
        _shorten(logging._after_at_fork_child_reinit_locks, _logging_holds_one_lock)
        atexit.unregister(logging.shutdown)  # see `run_exit_functions`
        _log_handlers[:] = [logging._handlerList]


def run_exit_functions() -> None:
    """As the interpreter does; `logging` flushes its handlers last, if there are any."""
    atexit._run_exitfuncs()
    if _log_handlers and len(_log_handlers[0]) > 1:
        sys.modules["logging"].shutdown()


def _shorten(hook: Any, short: Any) -> None:  # noqa: ANN401 - functions, whose parts are meant
    """The interpreter holds on to the function and cannot be told to forget it: so it gets another body.

    None: it gets its own one back. A function that somebody else has put there is left alone.
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
