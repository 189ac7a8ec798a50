"""Calls a provider of Ray's with a limit on the time of each call, and reads "not found" as "gone".

A call that takes too long is left behind with its thread, and so is the object it was made on: it may hold a
lock that nobody gets any more. The next call is made on a new object.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from muster.errors import MusterError
from muster.providers.v1.failures import provider_call

LOOK_S = 60.0
CHANGE_S = 900.0  # classes of Ray's wait in create calls until the cloud has done all of it
_LOOKS = frozenset(
    {"external_ip", "internal_ip", "is_running", "is_terminated", "node_tags", "non_terminated_nodes"}
)


class CallTimedOut(MusterError):
    """A CallTimedOut means that a provider did not return in time; what it did is not known."""

    retryable = True


class _CallThread:
    """A _CallThread makes one call after the other, until one of them takes too long."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="muster-compat", daemon=True).start()

    def make(self, call: Callable[[], Any], limit_s: float) -> tuple[bool, Any]:
        """Returns whether the call succeeded, and its value or error; queue.Empty when time is up."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((call, answer))
        try:
            found: tuple[bool, Any] = answer.get(timeout=limit_s)
        except queue.Empty:
            self._calls.put(None)  # it ends when the call does
            raise
        return found

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, answer = given
            try:
                answer.put((True, provider_call(call)))
            except Exception as error:  # noqa: BLE001 - raised where the call was made
                answer.put((False, error))


class GuardedObject:
    """A GuardedObject is one object of a provider's class, whose calls come back in time."""

    def __init__(self, make: Callable[[], Any], look_s: float = LOOK_S, change_s: float = CHANGE_S) -> None:
        self._make, self._look_s, self._change_s = make, look_s, change_s
        self._object: Any = None
        self._idle: list[_CallThread] = []
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - duck typed
        """Returns what the method returns; raises CallTimedOut, or what it raised."""
        limit_s = self._look_s if method in _LOOKS else self._change_s
        return self._timed(method, limit_s, lambda made: getattr(made, method)(*arguments))

    def has(self, method: str) -> bool:
        """Returns whether the class has the method; the object is made for it."""
        return bool(self._timed(method, self._look_s, lambda made: callable(getattr(made, method, None))))

    def _timed(self, name: str, limit_s: float, work: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        with self._lock:
            thread = self._idle.pop() if self._idle else _CallThread()
        try:
            is_good, found = thread.make(lambda: work(self._made()), limit_s)
        except queue.Empty:
            with self._lock:
                self._object = None
            raise CallTimedOut(f"the provider's {name} did not return within {limit_s:g} s") from None
        with self._lock:
            self._idle.append(thread)
        if not is_good:
            raise found
        return found

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.end()

    def _made(self) -> Any:  # noqa: ANN401 - duck typed
        made = self._object
        if made is None:
            made = provider_call(self._make)
            with self._lock:
                self._object = made = self._object or made
        return made


def is_not_found(error: BaseException) -> bool:
    """Returns whether a cloud said that something is not there (any more)."""
    current: BaseException | None = error
    for _ in range(5):
        if current is None:
            return False
        if _status_of(current) in (404, 410) or _has_code(current):
            return True
        current = current.__cause__ or current.__context__
    return False


def _status_of(error: BaseException) -> int:
    """Returns the HTTP status, wherever the libraries of the clouds keep it; 0 without one."""
    response = getattr(error, "resp", None) or getattr(error, "response", None)
    for owner in (error, response):
        for name in ("status", "status_code", "code", "http_status"):
            value = getattr(owner, name, None)
            if isinstance(value, int | str) and str(value).isdecimal():
                return int(value)
    return 0


def _has_code(error: BaseException) -> bool:
    words = [
        type(error).__name__,
        *(str(getattr(error, name, "")) for name in ("error_code", "reason", "code")),
    ]
    plain = {"".join(letter for letter in word.lower() if letter.isalpha()) for word in words}
    return any("notfound" in word or "doesnotexist" in word for word in plain)
