"""Define the exceptions of `ray.exceptions` that libraries catch, and those that tasks raise here."""

from __future__ import annotations

from typing import Any

from muster.base.untrusted import error_text


class RayError(Exception):
    """Base of every exception of `ray.exceptions`."""


class RaySystemError(RayError):
    """A part of Ray failed; muster raises it where a task's result cannot be read."""


class RayTaskError(RayError):
    """Raised by `ray.get` for a task that raised; `cause` is what it raised.

    `ray.get` raises an error that is also of the cause's type, so that `except ValueError` catches it.
    """

    def __init__(self, function_name: str, traceback_str: str, cause: BaseException) -> None:
        self.function_name, self.traceback_str, self.cause = function_name, traceback_str, cause
        super().__init__(f"{function_name}: {error_text(cause)}\n{traceback_str}".rstrip())

    def __str__(self) -> str:
        return str(self.args[0])

    def as_instanceof_cause(self) -> RayTaskError:
        """Return this error as one of the cause's type too; itself, where no such type can be made."""
        kind = type(self.cause)
        if issubclass(RayTaskError, kind):
            return self
        try:
            both: Any = type(f"RayTaskError({kind.__name__})", (RayTaskError, kind), {"__module__": __name__})
            made: RayTaskError = both.__new__(both)
        except TypeError:
            return self
        RayTaskError.__init__(made, self.function_name, self.traceback_str, self.cause)
        made.__cause__ = self.cause
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _task_error, (self.function_name, self.traceback_str, self.cause)


def _task_error(function_name: str, traceback_str: str, cause: BaseException) -> RayTaskError:
    return RayTaskError(function_name, traceback_str, cause).as_instanceof_cause()


class TaskCancelledError(RayError):
    """The task was cancelled by `ray.cancel`."""


class GetTimeoutError(RayError, TimeoutError):
    """`ray.get(timeout=...)` ended before the result was there."""


class WorkerCrashedError(RayError):
    """The process of a task ended before its task did."""


class ObjectLostError(RayError):
    """A stored object is gone."""


class RayActorError(RayError):
    """An actor failed; muster runs no actors."""


# Names that libraries list in `except` clauses; nothing here raises them.
_UNUSED = {
    RayActorError: ("ActorDiedError", "ActorUnavailableError"),
    ObjectLostError: (
        *("ObjectFetchTimedOutError", "ObjectFreedError", "ObjectReconstructionFailedError"),
        "OwnerDiedError",
    ),
    RayError: (
        *("ActorUnschedulableError", "AsyncioActorExit", "CrossLanguageError", "LocalRayletDiedError"),
        *("NodeDiedError", "ObjectStoreFullError", "OutOfDiskError", "OutOfMemoryError"),
        *("PendingCallsLimitExceeded", "PlasmaObjectNotAvailable", "RuntimeEnvSetupError"),
        *("TaskPlacementGroupRemoved", "TaskUnschedulableError"),
    ),
}
for _base, _names in _UNUSED.items():
    globals().update({name: type(name, (_base,), {"__module__": __name__}) for name in _names})
