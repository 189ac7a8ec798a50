"""Listing: looks at a v1 provider's machines without ever holding the loop up; used by V1Adapter only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from muster.base.clock import Clock
from muster.base.ids import CloudId
from muster.base.log import OnChange
from muster.cluster.model import CloudInstance
from muster.errors import MusterError
from muster.providers.v1.calls import V1Calls
from muster.providers.v1.failures import BROKEN
from muster.providers.v1.thread_pools import Pool

logger = logging.getLogger(__name__)

TOO_OLD_S = 10.0  # an answer that lay about for longer than this is asked again


class ListingLate(MusterError):
    """The provider has not answered yet. Nothing may be concluded from that."""

    retryable = True


class _Look:
    """One question on its way."""

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.answered_at = asked_at
        self.machines: dict[CloudId, CloudInstance] = {}
        self.problems: dict[str, str] = {}
        self.error: BaseException | None = None
        self.future: Future[None] | None = None


class Listing:
    """One look at a time; an answer that comes too late for one tick serves the next."""

    def __init__(
        self, calls: V1Calls, new_pool: Callable[[], Pool], clock: Clock, wait_s: float, given_up_s: float
    ) -> None:
        self._calls, self._new_pool, self._clock = calls, new_pool, clock
        self._wait_s, self._given_up_s = wait_s, given_up_s
        self._pool = new_pool()
        self._look: _Look | None = None
        self._changes = OnChange(logger)

    def read(self) -> Mapping[CloudId, CloudInstance]:
        """Waits a bounded time; ListingLate, or what the provider raised."""
        look = self._current()
        assert look.future is not None
        wait((look.future,), timeout=self._wait_s)
        if not look.future.done():
            waited_s = self._clock.monotonic() - look.asked_at
            raise ListingLate(f"the provider has been listing its machines for {waited_s:.0f} s")
        self._look = None
        if look.error is not None:
            raise look.error if isinstance(look.error, Exception) else RuntimeError(repr(look.error))
        for node_id, problem in look.problems.items():
            self._changes.log(logging.WARNING, node_id, f"machine {node_id}: {problem}")
        return look.machines

    def close(self, wait_s: float) -> None:
        self._pool.close(wait_s)

    def _current(self) -> _Look:
        """The look under way, or a new one. A question nobody answers is given up with its thread."""
        look, now = self._look, self._clock.monotonic()
        if look is not None and look.future is not None:
            since = look.answered_at if look.future.done() else look.asked_at
            limit = TOO_OLD_S if look.future.done() else self._given_up_s
            if now - since <= limit:
                return look
            if not look.future.done():
                self._pool.close()
                self._pool = self._new_pool()
        self._look = look = _Look(now)
        look.future = self._pool.submit(lambda: self._answer(look))
        return look

    def _answer(self, look: _Look) -> None:
        try:
            look.machines, look.problems = self._calls.listed()
        except BROKEN as error:
            look.error = error
        look.answered_at = self._clock.monotonic()
