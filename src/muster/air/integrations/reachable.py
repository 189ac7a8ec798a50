"""Is there a server at all? Asked before a client is, because clients wait for minutes before they say no."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PORTS = {"http": 80, "https": 443}


def check_reachable(address: str, timeout_s: float = 10.0) -> None:
    """ConnectionError when nothing listens there; an address that is not HTTP, or behind a proxy, is good."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return  # the client will say what is wrong with it
    if host is None or port is None or parts.scheme not in _PORTS:
        return
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers at {host}:{port} ({error})") from error
