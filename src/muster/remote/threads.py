"""Calls code that blocks, such as a provider's, from the event loop, without blocking it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from muster.base.foreign import shielded

T = TypeVar("T")


async def in_thread(call: Callable[[], T], *, name: str = "provider-call") -> T:
    """Returns what the call returns, or raises what it raises; a call that hangs holds up only its caller.

    There is a daemon thread for each call under way: a pool could be full of calls that never end.
    A caller that is cancelled leaves its call to itself.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # None only where T is

    def work() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = shielded(call)
        except BaseException as raised:  # noqa: BLE001 - raised again where it is awaited
            # A coroutine cannot raise StopIteration.
            error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await answer
