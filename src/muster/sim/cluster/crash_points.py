"""Where a controller can be killed: before and after every call it makes to the outside.

Every method of a simulated port is a `@step`. A fuse set on the wire counts the moments between steps and
raises `Killed` at the chosen one; the controller must never catch it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Killed(BaseException):
    """The controller's process is gone: not an error, an end."""


class CrashPoints:
    """Counts steps; cuts the controller off where told to."""

    def __init__(self) -> None:
        self.kill_after: int | None = None  # moments left to live; None: for ever
        self.killed_at = ""

    def before(self, name: str) -> None:
        self._count(f"before {name}")

    def after(self, name: str) -> None:
        self._count(f"after {name}")

    def _count(self, where: str) -> None:
        if self.kill_after is None:
            return
        self.kill_after -= 1
        if self.kill_after < 0:
            self.kill_after = None
            self.killed_at = where
            raise Killed(where)


class HasCrashPoints(Protocol):
    crash_points: CrashPoints


W = TypeVar("W", bound=HasCrashPoints)


def crash_point(name: str) -> Callable[[Callable[Concatenate[W, P], R]], Callable[Concatenate[W, P], R]]:
    """A port method: the controller may die right before it and right after it, reply in hand or not."""

    def decorate(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
        @functools.wraps(method)
        def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
            self.crash_points.before(name)
            try:
                return method(self, *args, **kwargs)
            finally:
                self.crash_points.after(name)

        return call

    return decorate
