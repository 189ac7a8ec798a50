"""Start the page's server and keep it running until Ctrl-C, or until another process ends."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from muster.base.clock import Clock
from muster.errors import ClusterError
from muster.host.machine import give_memory_back
from muster.host.processes import ProcessIdentity, is_alive
from muster.page.catalog import Catalog
from muster.page.guard import MAX_HEADER_BYTES, Guard, load_token

DEFAULT_PORT = 8787
TRIED_PORTS = 20  # from the default one on
_CONNECTIONS = 64


@dataclass(frozen=True, kw_only=True)
class PageAddress:
    """Where the page listens; another host than 127.0.0.1 is reachable by others."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: DEFAULT_PORT, or the next free one
    names: Sequence[str] = ()  # further host names under which browsers may ask

    @property
    def is_private(self) -> bool:
        return self.host in ("127.0.0.1", "::1", "localhost")


def token_file() -> Path:
    """Return where the user's token is kept."""
    return Path(platformdirs.user_state_dir("muster")) / "page-token"


def bind(address: PageAddress) -> socket.socket:
    """Return a listening socket; MusterError with what to do when there is none."""
    ports = [address.port] if address.port is not None else range(DEFAULT_PORT, DEFAULT_PORT + TRIED_PORTS)
    for port in ports:
        try:
            return _listening(address.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or address.port is not None:
                reason = f"cannot listen on {address.host}:{port} ({error.strerror}); check --host and --port"
                if error.errno == errno.EADDRINUSE:
                    reason = f"port {port} is in use; give another one with --port, or 0 for any that is free"
                raise ClusterError(reason) from error
    last = DEFAULT_PORT + TRIED_PORTS - 1
    raise ClusterError(
        f"the ports {DEFAULT_PORT} to {last} are all in use", fix="give a free one with --port"
    )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(64)
    except BaseException:
        made.close()
        raise
    return made


def serve(
    catalog: Catalog,
    address: PageAddress,
    *,
    clock: Clock,
    opened: Callable[[str], None],
    until: ProcessIdentity | None = None,
    actions: bool = False,
) -> None:
    """Serve until Ctrl-C; calls `opened` with the one-time link once the page can be reached."""
    import gc

    import anyio._backends._asyncio  # noqa: F401 - the first request would import it, and wait for it
    import uvicorn

    from muster.page.app import PageApp
    from muster.page.http_protocol import TimedProtocol

    gc.set_threshold(400_000, 20, 20)  # trials are many small objects without cycles: a fifth of a first look
    give_memory_back()  # else the arrays of a first look would stay in it for good
    listening = bind(address)
    page = PageApp(catalog, monotonic=clock.monotonic, actions=actions)
    hosts = (address.host, *address.names)
    guard = Guard(page.starlette(), token=load_token(token_file()), hosts=hosts, actions=actions)
    config = uvicorn.Config(
        guard,
        log_level="error",
        access_log=False,  # it would write the link's secret
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        server_header=False,
        lifespan="off",
        ws="none",
        http=TimedProtocol,
    )
    server = uvicorn.Server(config)
    host = "127.0.0.1" if address.host in ("0.0.0.0", "") else address.host
    shown = f"[{host}]" if ":" in host else host
    threading.Thread(target=page.read_ahead, daemon=True).start()
    opened(f"http://{shown}:{listening.getsockname()[1]}/?launch={guard.new_link()}")
    try:
        asyncio.run(
            _run(server, listening, page_closing=lambda: setattr(page, "is_closing", True), until=until)
        )
    except KeyboardInterrupt:
        pass
    finally:
        catalog.close()
        listening.close()


async def _run(
    server: object,
    listening: socket.socket,
    *,
    page_closing: Callable[[], None],
    until: ProcessIdentity | None,
) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))  # type: ignore[attr-defined]  # uvicorn's
    while not serving.done():
        await asyncio.wait([serving], timeout=0.5)
        if server.should_exit or (until is not None and not is_alive(until)):  # type: ignore[attr-defined]
            page_closing()
            server.should_exit = True  # type: ignore[attr-defined]
    await serving
