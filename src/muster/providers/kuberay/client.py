"""A KubeClient sends requests to a Kubernetes API server, and reads streams of events from it.

Standard library only. A connection is kept per thread; every request has a deadline. Refusals are KubeErrors
with the server's code: what they mean is decided by the caller.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from muster.errors import MusterError
from muster.providers.kuberay.credentials import KubeAccess

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
_MAX_ANSWER = 256 * 2**20
_NO_RESOURCE = "could not find the requested resource"
_BROKEN = (OSError, http.client.HTTPException)  # ssl.SSLError and time-outs are OSErrors


class KubeError(MusterError):
    """An answer that refuses; `code` is that of HTTP, 0 when there was no answer."""

    def __init__(
        self, message: str, *, code: int, reason: str = "", retry_after_s: float | None = None
    ) -> None:
        self.code, self.reason, self.retry_after_s = code, reason, retry_after_s
        super().__init__(message)


class KubeUnreachable(KubeError):
    """No answer came; what was asked may have been done."""

    retryable: ClassVar[bool] = True


class KubePaths:
    """Names the objects of one RayCluster."""

    def __init__(self, namespace: str, cluster: str, crd_version: str = "v1") -> None:
        self.namespace, self.cluster, self.crd_version = namespace, cluster, crd_version
        self.pods = f"/api/v1/namespaces/{quote(namespace)}/pods"
        self.clusters = f"/apis/ray.io/{quote(crd_version)}/namespaces/{quote(namespace)}/rayclusters"
        self.ray_cluster = f"{self.clusters}/{quote(cluster)}"

    def pod(self, name: str) -> str:
        return f"{self.pods}/{quote(name)}"


class KubeClient:
    """Used from several threads."""

    def __init__(self, access: KubeAccess, timeout_s: float = TIMEOUT_S) -> None:
        self.access, self._timeout_s = access, timeout_s
        self._own = threading.local()
        self._open: set[http.client.HTTPConnection] = set()  # of all threads
        self._lock = threading.Lock()
        self.logs_outages = False  # True: where a loop keeps trying
        self._is_away = False
        parts = urlsplit(access.url)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path.rstrip("/")

    # -- requests -----------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.raw("GET", with_query(path, query)))
        return found

    def patch(self, path: str, body: object, kind: str = JSON_PATCH) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.raw("PATCH", path, body, kind))
        return found

    def post(self, path: str, body: object) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.raw("POST", path, body, "application/json"))
        return found

    def delete(self, path: str, body: object = None) -> None:
        self.raw("DELETE", path, body, "application/json")

    def raw(self, method: str, path: str, body: object = None, kind: str = "") -> bytes:
        """Return the body of a good answer. Raises KubeError, KubeUnreachable when there was none."""
        data = None if body is None else msgspec.json.encode(body)
        return self._accepted(method, path, data, kind if data is not None else "").content

    @contextmanager
    def stream(self, path: str, query: Mapping[str, object], idle_s: float) -> Iterator[EventStream]:
        """Open a watch; one that is silent for `idle_s` counts as broken, and raises KubeUnreachable."""
        events = self._accepted("GET", with_query(path, query), idle_s=idle_s).events
        try:
            yield events
        except _BROKEN as error:
            raise self._unreachable(error) from None
        finally:
            events.close()

    def _accepted(
        self, method: str, path: str, data: bytes | None = None, kind: str = "", idle_s: float | None = None
    ) -> Answer:
        """Return a good answer; one that refuses the token is tried again with a fresh one."""
        for fresh in (False, True):
            headers = {"Accept": "application/json", "User-Agent": "muster"}
            headers |= self.access.headers(fresh=fresh) | ({"Content-Type": kind} if kind else {})
            try:
                answer = self.request(method, path, data, headers, idle_s)
            except _BROKEN as error:
                self.drop_connection()
                problem = self._unreachable(error)
                self._note_outage(str(problem))
                raise problem from None
            self._note_outage("")
            if answer.code != http.client.UNAUTHORIZED:
                break
            self.drop_connection()  # a renewed certificate takes effect with a new connection
        if answer.code >= http.client.BAD_REQUEST:
            raise refusal(answer.code, answer.content, method, path, answer.retry_after)
        return answer

    def _note_outage(self, problem: str) -> None:
        """Log one line for all threads when answers stop, and one when they come again."""
        was_away, self._is_away = self._is_away, bool(problem)
        if self.logs_outages and was_away != self._is_away:
            level = logging.WARNING if problem else logging.INFO
            logger.log(level, "%s", problem or f"the API server at {self.access.url} answers again")

    # -- the wire -----------------------------------------------------------------------------

    def request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], idle_s: float | None = None
    ) -> Answer:
        """Send one request: all that muster asks of an API server. With `idle_s` the answer is a stream."""
        if idle_s is not None:
            return self._send(self._connect(idle_s), method, path, data, headers, is_stream=True)
        connection = getattr(self._own, "connection", None)
        try:
            return self._send(connection or self._keep(), method, path, data, headers)
        except _BROKEN:
            # A server closes connections that were quiet; only what changes nothing is simply sent again.
            if connection is None or method != "GET":
                raise
            self.drop_connection()
            return self._send(self._keep(), method, path, data, headers)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
        *,
        is_stream: bool = False,
    ) -> Answer:
        try:
            connection.request(method, self._prefix + path, body=data, headers=headers)
            found = connection.getresponse()
        except _BROKEN:
            connection.close()
            raise
        answer = Answer(found.status, found.getheader("Retry-After"))
        if is_stream and answer.code < http.client.BAD_REQUEST:
            answer.events = EventStream(found, connection)
            return answer
        answer.content = found.read(_MAX_ANSWER)
        if is_stream:
            connection.close()
        elif found.will_close:
            self.drop_connection()
        return answer

    def _keep(self) -> http.client.HTTPConnection:
        """Open the connection that this thread uses from now on."""
        connection: http.client.HTTPConnection = self._connect(self._timeout_s)
        self._own.connection = connection
        with self._lock:
            self._open.add(connection)
        return connection

    def drop_connection(self) -> None:
        """Close this thread's connection; the next request opens another."""
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._own.connection = None
            with self._lock:
                self._open.discard(connection)

    def close(self) -> None:
        """Close the connections of all threads; a later request opens another."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.access.url.startswith("https://"):
            self.access.headers()  # a plugin may bring the certificate
            context = self.access.ssl_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _unreachable(self, error: BaseException) -> KubeUnreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message}): give the CA of the cluster"
        else:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            why = f"it does not answer ({text}): check the address and the network"
        return KubeUnreachable(f"the API server at {self.access.url}: {why}", code=0)


class EventStream:
    """The lines of a watch; `stop` may be called from another thread."""

    def __init__(self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> None:
        self._answer, self._connection, self._socket = answer, connection, connection.sock

    def __iter__(self) -> Iterator[bytes]:
        while line := self._answer.readline():
            yield line

    def stop(self) -> None:
        """End the stream: a read under way returns."""
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself

    def close(self) -> None:
        self._connection.close()


@dataclass
class Answer:
    """The answer to one request: its content, or the events of a stream."""

    code: int
    retry_after: str | None = None
    content: bytes = b""
    events: EventStream = field(init=False)


def with_query(path: str, query: Mapping[str, object] | None) -> str:
    return f"{path}?{urlencode({k: str(v) for k, v in query.items()})}" if query else path


def refusal(code: int, content: bytes, method: str, path: str, retry_after: str | None = None) -> KubeError:
    """Return the error for an answer; one about rights names the verb and the resource that are missing."""
    try:
        status = msgspec.json.decode(content)
    except msgspec.DecodeError:
        status = {}
    status = status if isinstance(status, Mapping) else {}
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    verb, resource = _asked(method, path)
    if code == http.client.FORBIDDEN:
        text = (
            f"the service account may not {verb} {resource}: add the verb {verb!r} for {resource} to its Role"
            f" (the server says: {message})"
        )
    elif code == http.client.UNAUTHORIZED:
        text = "the API server does not accept the token: check the service account, or log in again"
    elif code == http.client.NOT_FOUND and _NO_RESOURCE in message:
        text = (
            f"the API server does not know {resource} at {path.partition('?')[0]}: install KubeRay, or set"
            " KUBERAY_CRD_VER to the version of its CRD"
        )
    else:
        text = f"the API server answers {code} to {verb} {resource}: {message or reason or 'no reason given'}"
    try:
        seconds = None if retry_after is None else min(max(0.0, float(retry_after)), 600.0)
    except ValueError:
        seconds = None
    return KubeError(text, code=code, reason=reason, retry_after_s=seconds)


def _asked(method: str, path: str) -> tuple[str, str]:
    """Return the verb and the resource of a request, as a Role names them."""
    where, _, query = path.partition("?")
    parts = where.split("/")
    place = parts.index("namespaces") + 2 if "namespaces" in parts else len(parts) - 1
    resource, rest = parts[place], parts[place + 1 :]
    if len(rest) > 1:
        resource = f"{resource}/{rest[1]}"
    if resource.startswith("rayclusters"):
        resource = resource.replace("rayclusters", "rayclusters.ray.io", 1)
    if method == "GET":
        return ("watch" if "watch=" in query else "get" if rest else "list"), resource
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower()), resource
