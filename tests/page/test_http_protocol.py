"""Half-open requests against a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn
from tests.page.test_guard import TOKEN, inner

from muster.page import http_protocol
from muster.page.guard import Guard
from muster.page.serve import _CONNECTIONS, PageAddress, bind


@pytest.fixture
def port() -> Iterator[int]:
    listening = bind(PageAddress(port=0))
    config = uvicorn.Config(
        Guard(inner, token=TOKEN),
        http=http_protocol.TimedProtocol,
        limit_concurrency=_CONNECTIONS,
        lifespan="off",
        ws="none",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    listening.close()


def half_open(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 10)
    made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    return made


def test_half_open_requests_leave_a_place_for_the_owner(port: int):
    with ExitStack() as stack:
        for _ in range(_CONNECTIONS + 10):
            stack.enter_context(half_open(port))
        owner = stack.enter_context(half_open(port))
        owner.sendall(f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert owner.recv(12) == b"HTTP/1.1 200"


def test_headers_that_do_not_arrive_end_the_connection(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_protocol, "HEADERS_S", 0.2)
    with half_open(port) as slow:
        began = time.monotonic()
        try:
            end = slow.recv(1)
        except ConnectionResetError:
            end = b""
        assert (end, time.monotonic() - began < 8) == (b"", True)
