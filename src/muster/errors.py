"""Define every public exception, grouped by what the caller should do about it, and `public`.

`@public` marks what users call. An error that a `raise` statement of muster made, or the user's own code,
leaves it with the user's frames only: the sentence is the last line, right below a line of the user. An error
that muster did not expect keeps all its frames. In Python's development mode (`python -X dev`) all errors do.

MusterError                   retryable: ClassVar[bool] = False
  ConfigError                 fix the file: carries path, file and line
  InvalidTransition           a bug; carries the entity and its history
  StoreError                  the ledger file cannot be used; says which and what to do
    VersionConflict           another process committed; observe again
    LedgerCorrupt             says what is damaged and how to continue; the file is not changed
    LedgerLocked              another process holds the ledger
    StoreFull                 no room on the disk, or it does not answer; nothing was written   retryable
  ProviderError               kind says how to react
    CapacityExhausted         try another type, or later        retryable
    QuotaExceeded             raise the quota; do not loop
    Throttled                 back off                          retryable
    ProviderDenied            credentials or permissions: notify the user, do not loop
    ProviderMisconfigured     the request can never work: fix the node type
  EngineError                 what trials or nodes run on cannot be used
    EngineMissing             Ray is not installed, or another version: the message says which
    EngineUnreachable         no cluster answers at the address retryable
    EngineDenied              the token is missing or wrong
  RemoteError                 a machine could not be set up or used
    Unreachable               it does not answer over SSH       retryable
      KeyRefused              wrong user or key, or too early   retryable
      HostKeyChanged          another machine is at the address: remove the pin, or look for an intruder
    CommandFailed             a command on it failed: carries exit code and last lines
  ClusterError                a cluster cannot be found, started or stopped; says what to do
  TuneError                   Ray's public name: an experiment that cannot continue, and what to change
    CommandError              the command of a trial cannot be used, or has failed
      NeverReported           it ended well and reported nothing: correct the metric, or how it reports
    RankFailed                one of the processes of a trial failed: carries its rank and exit code
    RestoreError              an experiment that cannot be resumed from its directory
    PluginError               a user's plug-in raised; also of the type that it raised
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from types import FrameType, FunctionType, TracebackType
from typing import Any, ClassVar, TypeVar


class MusterError(Exception):
    """Base of every error that muster raises on purpose; `fix` says what to do, at the end of the message."""

    retryable: ClassVar[bool] = False
    fix: str = ""

    def __init__(self, *args: object, fix: str = "") -> None:
        self.fix = fix
        super().__init__(*(f"{args[0]}; {fix}", *args[1:]) if fix and args else args)


class ConfigError(MusterError):
    """Reports a configuration that cannot be used, with the place to fix."""

    def __init__(
        self, message: str, *, path: str = "", file: str = "", line: int | None = None, fix: str = ""
    ) -> None:
        self.message, self.path, self.file, self.line = message, path, file, line
        where = file if line is None else f"{file}:{line}"
        super().__init__(": ".join([part for part in (where, path) if part] + [message]), fix=fix)


class InvalidTransition(MusterError):
    """A state change that the transition table does not allow."""

    def __init__(self, entity: str, source: str, target: str, history: Sequence[str] = ()) -> None:
        self.entity, self.source, self.target, self.history = entity, source, target, tuple(history)
        tail = f" (history: {' > '.join(self.history)})" if self.history else ""
        super().__init__(f"{entity} may not go from {source} to {target}{tail}")


class StoreError(MusterError):
    """The ledger cannot be read or written."""


class VersionConflict(StoreError):
    """Another process committed since the read: observe and decide again."""

    retryable = True

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"ledger is at version {actual}, the decision was made at version {expected}")


class LedgerCorrupt(StoreError):
    """The ledger file is damaged; the message says how to continue."""


class HistoryDamaged(StoreError):
    """A part of a cluster's history cannot be read; the message says which."""


class LedgerLocked(StoreError):
    """Another process holds the ledger."""

    retryable = True


class StoreFull(StoreError):
    """The disk is full or does not answer; nothing was written."""

    retryable = True


class ProviderError(MusterError):
    """A refusal; `kind` is one of the values of `cluster.model.FailureKind`."""

    kind: ClassVar[str] = "unknown"


class CapacityExhausted(ProviderError):
    """Sold out: try another type, another zone, or later."""

    kind = "capacity"
    retryable = True


class QuotaExceeded(ProviderError):
    """The account's limit: a user must raise it."""

    kind = "quota"


class Throttled(ProviderError):
    """Too many calls: wait and retry."""

    kind = "throttled"
    retryable = True


class ProviderDenied(ProviderError):
    """Missing credentials or permissions: a user must act."""

    kind = "permission"


class ProviderMisconfigured(ProviderError):
    """A ProviderMisconfigured request can never succeed as written."""

    kind = "config"


class EngineError(MusterError):
    """What trials or nodes run on cannot be used; one line with cause and fix."""


class EngineMissing(EngineError):
    """Ray is not installed, or in a version that muster does not support."""


class EngineUnreachable(EngineError):
    """No cluster answers at the address."""

    retryable = True


class EngineDenied(EngineError):
    """The cluster's token is missing or wrong."""


class RemoteError(MusterError):
    """Something could not be done on a machine; it says on which, and what to do."""


class Unreachable(RemoteError):
    """An Unreachable machine does not answer, refuses the key, or is not the one that it was before."""

    retryable = True


class KeyRefused(Unreachable):
    """A machine refuses this key; a new machine may not have it yet."""


class HostKeyChanged(Unreachable):
    """Another machine, or one reinstalled, answers at an address."""

    retryable = False


class CommandFailed(RemoteError):
    """A command that ended on the machine with another code than 0."""

    def __init__(
        self, message: str, *, exit_code: int, last_lines: Sequence[str] = (), fix: str = ""
    ) -> None:
        self.exit_code, self.last_lines = exit_code, tuple(last_lines)
        super().__init__(message, fix=fix)


class ClusterError(MusterError):
    """A cluster cannot be found, started or stopped; it says what to do."""


class TuneError(MusterError):
    """An experiment cannot continue; the message names the component and the fix.

    Where trials failed, `args[1]` has them, as in Ray.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CommandError(TuneError):
    """The command of a trial cannot be used, or has failed; `exit_code` None: it was not run."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message, fix=fix)


class NeverReported(CommandError):
    """The command of a trial ended well and never reported the metric."""


class RankFailed(TuneError):
    """One of the processes of a trial failed, and muster ended the others; `exit_code` < 0: by a signal."""

    def __init__(self, message: str, *, rank: int = -1, exit_code: int = 0) -> None:
        self.rank, self.exit_code = rank, exit_code
        super().__init__(message)


class RestoreError(TuneError):
    """An experiment cannot be resumed from its directory."""


class PluginError(TuneError):
    """What a user's plug-in raised, with who raised it; `as_plugin_error` makes it."""


def as_plugin_error(error: Exception, message: str) -> PluginError:
    """Return an error that is of the plug-in's own type too, so that its author's `except` still catches it.

    Args:
        error: What the plug-in raised.
        message: The sentence that names the plug-in.

    Example:
        >>> isinstance(as_plugin_error(KeyError("x"), "the searcher raised KeyError"), KeyError)
        True
    """
    kind = type(error)
    try:
        both: Any = type(kind.__name__, (PluginError, kind), {"__module__": kind.__module__})
        made: PluginError = both.__new__(both, message)
        made.__dict__.update(vars(error))
    except TypeError:  # a type that cannot be a base, or whose __new__ wants more
        return PluginError(message)
    made.args = (message,)
    return made


T = TypeVar("T")
_Prepare = Callable[[dict[str, Any]], dict[str, Any]]
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_classes: dict[str, type] = {}


def public(thing: T) -> T:
    """Mark a function, or the constructor and the public methods of a class, as called by users.

    Called from muster itself they change nothing. A call with wrong arguments says what they are called.
    """
    if not isinstance(thing, type):
        return _boundary(thing)  # type: ignore[return-value,arg-type]  # T is a function here
    _classes[thing.__name__] = thing
    for name, value in list(vars(thing).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, FunctionType):
            setattr(thing, name, _boundary(value))
        elif isinstance(value, classmethod | staticmethod):
            setattr(thing, name, type(value)(_boundary(value.__func__)))
        elif isinstance(value, property) and value.fget is not None:
            setattr(thing, name, property(_boundary(value.fget), value.fset, value.fdel, value.__doc__))
        elif isinstance(value, cached_property):
            value.func = _boundary(value.func)
    return thing


def public_constructor(kind: type, prepare: _Prepare | None = None) -> None:
    """Mark the constructor of a class of muster; for `__init_subclass__` of what users extend as well.

    Args:
        kind: The class.
        prepare: Returns the keyword arguments to call the constructor with.
    """
    if "__init__" in vars(kind) and kind.__module__.startswith("muster."):
        kind.__init__ = _boundary(kind.__init__, prepare)  # type: ignore[misc]  # the same signature


def _boundary(function: Callable[..., Any], prepare: _Prepare | None = None) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
        kwargs = kwargs if prepare is None else prepare(kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not _is_ours(sys._getframe(1)):
                before_raise(error, is_expected=_explains_call(error, function, kwargs))
            raise  # a bare `raise` adds no frame

    return call


def before_raise(error: BaseException, *, is_expected: bool = False) -> None:
    """Hide frames in the `except` clause of what users call; a bare `raise` must follow.

    Args:
        error: The error under way.
        is_expected: Hide the frames whatever the error is.
    """
    hide_frames(error, is_expected=is_expected)
    if sys.version_info < (3, 11):
        _set_traceback_of_raise(error)


def hide_frames(error: BaseException, *, is_expected: bool = False) -> None:
    """Remove muster's frames from an error and from those that led to it, unless it may be a bug.

    Args:
        error: The error.
        is_expected: Hide the frames whatever the error is.
    """
    if (is_expected or _is_expected(error)) and not sys.flags.dev_mode:
        _strip_chain(error)


def _is_expected(error: BaseException) -> bool:
    """Return whether muster raised an error on purpose, with a sentence, or code of the user raised it."""
    entries = list(_entries(error.__traceback__))
    while entries and _is_library(entries[-1].tb_frame):
        entries.pop()
        if entries and _is_ours(entries[-1].tb_frame):
            return False  # muster called a library, which did not like it
    if not entries or not _is_ours(entries[-1].tb_frame):
        return bool(entries)
    return is_deliberate(error)


def is_deliberate(error: BaseException) -> bool:
    """Return whether a `raise` statement of muster made this error, for a user to read."""
    from opcode import opmap

    entries = list(_entries(error.__traceback__))
    if not entries or not error.args or isinstance(error, InvalidTransition):
        return False
    code, frame = entries[-1].tb_frame.f_code, entries[-1].tb_frame
    return _is_ours(frame) and code.co_code[entries[-1].tb_lasti] == opmap["RAISE_VARARGS"]


def _strip_chain(error: BaseException) -> None:
    """Leave the user's frames; an earlier error that none of them led to is not shown at all."""
    cause, context = error.__cause__, error.__context__
    error.__traceback__ = _stripped(error.__traceback__)
    if cause is not None:
        _strip_chain(cause)
        if all(_is_library(entry.tb_frame) for entry in _entries(cause.__traceback__)):
            error.__cause__ = None  # which leaves it in __context__, not shown
    elif context is not None and not error.__suppress_context__:
        first = context.__traceback__
        error.__suppress_context__ = first is None or _is_ours(first.tb_frame)


def _stripped(trace: TracebackType | None) -> TracebackType | None:
    """Return the frames of users, and of a library only where it is the last one's own call."""
    kept: TracebackType | None = None
    is_last = True
    for entry in reversed(list(_entries(trace))):
        is_user = not _is_ours(entry.tb_frame) and not _is_library(entry.tb_frame)
        if is_user or (is_last and not _is_ours(entry.tb_frame)):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        is_last = is_last and not is_user and not _is_ours(entry.tb_frame)
    return kept


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(frame: FrameType) -> bool:
    # By module: the code of dataclasses has no file. Trainables of examples and tests are as a user's own.
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "muster" and not name.startswith(
        ("muster.testing", "muster.tune.examples")
    )


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not _is_ours(frame) and (file.startswith(_LIBRARIES) or "-packages" + os.sep in file)


def _explains_call(error: Exception, function: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the call itself was wrong, and adds what Python does not say: the parameters."""
    trace = error.__traceback__
    if not isinstance(error, TypeError) or trace is None or trace.tb_next is not None:
        return False
    import difflib
    import inspect

    takes = [
        one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")
    ]
    names = [one.name for one in takes]
    name = function.__qualname__.removesuffix(".__init__")
    unknown = next((key for key in kwargs if key not in names), None)
    if unknown is None:
        usage = ", ".join(one.name if one.default is one.empty else f"{one.name}=..." for one in takes)
        fix = f"write {name}({usage})" if takes else "it takes no arguments"
        text = str(error).replace(".__init__()", "()")
        if text.endswith(" given"):  # Python counts `self` too
            text = f"{text.partition(' takes ')[0]} got too many positional arguments"
        error.args = (f"{text}: {fix}",)
        return True
    near = difflib.get_close_matches(unknown, names, n=1)
    owners = (each for each, kind in _classes.items() if unknown in inspect.signature(kind).parameters)
    owner = None if near else next(owners, None)
    fix = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names) or 'no arguments'}"
    fix = fix if owner is None else f"it is a parameter of {owner}: pass {owner}({unknown}=...)"
    error.args = (f"{name}() has no parameter {unknown!r}: {fix}",)
    return True


def _set_traceback_of_raise(error: BaseException) -> None:
    """Let the next bare `raise` use the error's own traceback, as newer Pythons do."""
    import ctypes

    api = ctypes.pythonapi
    values = (type(error), error, error.__traceback__)
    for value in values:
        api.Py_IncRef(ctypes.py_object(value))  # the next call takes them over
    api.PyErr_SetExcInfo(*map(ctypes.py_object, values))
