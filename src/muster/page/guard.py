"""Keep everybody but the user away from the page: host names, methods, tokens, headers, limits.

An ASGI layer around the whole application, so that nothing is routed before it has agreed. It never logs a
token, and compares tokens in constant time. Browsers get a secret of this server's life, not the token:
they send cookies to every port of a host, also to whoever listens there after this server.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from muster.errors import StoreError
from muster.host.atomic_write import atomic_write

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "muster_page"
ACTION_PATH, ACTION_HEADER = "/request", b"x-muster-action"
MAX_ACTION_BYTES = 4096
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_HEADER_BYTES = 16_384
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
)
_HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


def load_token(file: Path) -> str:
    """Return the user's token, which is made on first use; only its owner can read the file."""
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_mode & 0o077:
            raise StoreError(
                f"{file}: others may read this token",
                fix=f"run `chmod 600 {file}`, or delete it to get a new one",
            )
        found = file.read_text(encoding="ascii").strip()
        if len(found) >= 32:
            return found
    token = secrets.token_urlsafe(32)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(file, token.encode(), mode=0o600)
    return token


class Guard:
    """Lets a request pass that names a known host, only reads, and shows a token."""

    def __init__(self, app: App, *, token: str, hosts: Iterable[str] = (), actions: bool = False) -> None:
        self._app = app
        self._actions = actions  # whether requests to a driver may pass
        self._token = token.encode()
        self._secret = secrets.token_urlsafe(32).encode()
        self._hosts = frozenset((*LOOPBACK, *(host.lower() for host in hosts)))
        self._links: set[bytes] = set()

    def new_link(self) -> str:
        """Return a secret that opens the page once, as `/?launch=...`."""
        made = secrets.token_urlsafe(24)
        self._links.add(made.encode())
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        links = query.get("launch") if scope["path"] == "/" else None
        if links:
            await self._open(scope, links[0].encode(), send)
        elif self._is_known(scope):
            await self._app(scope, receive, _with_headers(send))
        else:
            await _answer(
                send,
                401,
                "Open the link that `muster dashboard` printed. A link works once; start `muster dashboard` "
                "again for another. Scripts send the token as `Authorization: Bearer`.",
            )

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Look at the host before anything else, whatever the method: against DNS rebinding."""
        headers = scope.get("headers", ())
        hosts = [value for name, value in headers if name == b"host"]
        if scope["type"] != "http":
            return 403, "only HTTP is spoken here"
        if len(hosts) != 1 or host_name(hosts[0].decode("latin-1")) not in self._hosts:
            return 403, "This host name is not allowed: use the address that `muster dashboard` printed."
        by_name = dict(headers)
        is_action = self._actions and scope["method"] == "POST" and scope["path"].endswith(ACTION_PATH)
        if scope["method"] not in ("GET", "HEAD") and not is_action:
            return 405, "This page can only be read."
        if by_name.get(b"sec-fetch-site") == b"cross-site" and by_name.get(b"sec-fetch-mode") != b"navigate":
            return 403, "Other sites may not read this page."
        if is_action and (refused := _refused_action(by_name)):
            return refused
        length = by_name.get(b"content-length", b"0")
        most = MAX_ACTION_BYTES if is_action else 0
        if not length.isdigit() or int(length) > most or b"transfer-encoding" in by_name:
            return 413, "A request to this page has no content, or little."
        if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            return 431, "The headers of this request are too long."
        return None

    async def _open(self, scope: Scope, link: bytes, send: Send) -> None:
        """Turn a link into a cookie. A used one is of no use, unless this browser has the cookie already."""
        match = next((known for known in self._links if hmac.compare_digest(known, link)), None)
        if match is None and not self._is_known(scope):
            await _answer(
                send, 401, "This link was used before. Start `muster dashboard` again: it prints another one."
            )
            return
        if match is not None:
            self._links.discard(match)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        place = "/" if "open" not in query else f"/#{query['open'][0]}"
        cookie = f"{cookie_name(scope)}={self._secret.decode()}; HttpOnly; SameSite=Strict; Path=/"
        safe = place.encode("ascii", "ignore").replace(b"\r", b"").replace(b"\n", b"")
        extra = ((b"location", safe), (b"set-cookie", cookie.encode()))
        await _answer(send, 303, "Opening.", extra)

    def _is_known(self, scope: Scope) -> bool:
        headers = dict(scope.get("headers", ()))
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(bearer.strip(), self._token):
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        name = cookie_name(scope)
        given = cookies[name].value.encode("latin-1", "replace") if name in cookies else b""
        return hmac.compare_digest(given, self._secret)


def _refused_action(headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
    """Refuse what a form or a script of another site could send: they cannot set this header."""
    origin, host = headers.get(b"origin", b""), headers.get(b"host", b"")
    is_own = not origin or origin.partition(b"://")[2].lower() == host.lower()
    if headers.get(ACTION_HEADER) != b"1" or not is_own:
        return 403, "Other sites may not change anything here."
    return None


def cookie_name(scope: Scope) -> str:
    """Return the name of a server's cookie: several servers on one host do not replace each other's."""
    return f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port.

    Example:
        >>> host_name("LOCALHOST:80"), host_name("[::1]:80"), host_name("a.b")
        ('localhost', '::1', 'a.b')
    """
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return wrapped


async def _answer(send: Send, status: int, text: str, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),  # a place for somebody who is known
        *_HEADERS,
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
