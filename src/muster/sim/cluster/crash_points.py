"""Define where a controller can be killed: before and after every call to a port.

Every method of a simulated port is a `@crash_point`. `kill_after` counts the points that are left and
`Killed` is raised at the last one; the controller must never catch it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Killed(KeyboardInterrupt):  # the one thing that a port may raise and nobody catches
    """Killed means that the controller's process is gone: not an error, an end."""


class CrashPoints:
    """CrashPoints count calls to ports, and kill the controller at the chosen one."""

    def __init__(self) -> None:
        self.kill_after: int | None = None  # crash points left to live; None: no limit
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
    """Any simulated port."""

    crash_points: CrashPoints


W = TypeVar("W", bound=HasCrashPoints)


def crash_point(name: str) -> Callable[[Callable[Concatenate[W, P], R]], Callable[Concatenate[W, P], R]]:
    """Mark a port method: the controller may die right before it and right after it."""

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
