"""Limit connections that send no whole request. Imported lazily: uvicorn takes long to import.

Any user of this computer can connect: without a limit, half-open requests would take all places.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0  # for a request's headers to arrive
MOST_HALF_OPEN = 24  # of the server's connections; then the oldest one is closed


class TimedProtocol(H11Protocol):
    """Closes a connection whose headers do not arrive in time."""

    half_open: dict[TimedProtocol, asyncio.TimerHandle] = {}  # noqa: RUF012 - of all connections, oldest first

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - asyncio's
        super().connection_made(transport)
        self._expect_headers()
        while len(self.half_open) > MOST_HALF_OPEN:
            next(iter(self.half_open))._give_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self not in self.half_open:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self.half_open[self] = self.loop.call_later(HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        timer = self.half_open.pop(self, None)
        if timer is not None:
            timer.cancel()
