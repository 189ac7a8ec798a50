"""A Kubernetes API server in memory, over real HTTP, for the tests: fast, and with faults on request.

It knows pods and rayclusters: get, list with label selectors, create, the three kinds of patch, delete with
grace, and watches with bookmarks that resume or are refused as too old. Tokens have Roles.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kube.objects import (
    Object,
    Refused,
    Store,
    applied,
    check_ray_cluster,
    matches,
    merged,
    patched,
    prune_ray_cluster,
)
from tests.kube.roles import ROLES, Role, Rule, allows

NAMESPACE = "research"
ADMIN = "token-of-the-administrator"
BOOKMARK_S, QUIET_BOOKMARK_S = 0.5, 15.0
_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"/namespaces/(?P<namespace>[^/]+)/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)
_GROUPS = {"pods": "", "events": "", "rayclusters": "ray.io"}
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass
class Fault:
    """What happens instead of, before or after the next requests that match; the administrator has none."""

    method: str
    path: str  # a part of the path with its query
    times: int = 1
    status: int = 0  # answered instead of the real answer
    headers: dict[str, str] = field(default_factory=dict)
    body: Object | None = None
    gate: threading.Event | None = None  # the request waits until it is set
    cut: bool = False  # the connection ends without an answer
    after: bool = False  # the request is carried out first: the client cannot know


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    token: str
    method: str
    path: str
    watch: bool = False


class KubeApi:
    """The server; `url`, `token(role)` and `admin_token` are what clients need."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.store = Store()
        self.tokens: dict[str, Role | None] = {ADMIN: None}
        self.admin_token = ADMIN
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.stale_lists = 0  # so many lists of pods show what was there at `freeze`
        self.has_resize = True
        self.prunes = False  # True: what the CRD of KubeRay 1.7 does not have is dropped, as a server does
        self.versions = ("v1",)  # of the CRD
        self.client_names: list[str] = []  # of certificates that clients have shown
        self._frozen: tuple[str, list[Object]] = ("", [])
        self._stops = 0  # watches that began before a stop end
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.tls = tls
        self.port = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.ca_file: str | None = None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.stop_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    # -- for tests ----------------------------------------------------------------------------

    def token(self, role: str | Role) -> str:
        """Return a token of a service account with a Role by its name, or with these rules."""
        made = f"token-{len(self.tokens)}"
        self.tokens[made] = ROLES[role] if isinstance(role, str) else role
        return made

    def grant(self, token: str, *rules: Rule) -> None:
        self.tokens[token] = (*(self.tokens[token] or ()), *rules)

    def revoke(self, token: str) -> None:
        """The token has expired: whoever shows it is answered 401."""
        del self.tokens[token]

    def fault(self, method: str, path: str, **what: Any) -> Fault:
        self.faults.append(Fault(method, path, **what))
        return self.faults[-1]

    def stop_watches(self) -> None:
        """Cut every watch in the middle of its stream."""
        with self.store.changed:
            self._stops += 1
            self.store.changed.notify_all()

    def freeze(self, lists: int) -> None:
        """The next lists of pods come from a cache that is not up to date: as now, whatever happens."""
        with self.store.changed:
            self._frozen = (str(self.store.version), copy.deepcopy(self.store.select("pods", NAMESPACE, "")))
            self.stale_lists = lists

    def count(self, method: str, part: str = "", token: str = "") -> int:
        return sum(
            one.method == method and part in one.path and token in ("", one.token) for one in self.asked
        )

    def role_of(self, token: str) -> Role | None:
        if token not in self.tokens:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return self.tokens[token]

    # -- requests -----------------------------------------------------------------------------

    def answer(self, call: _Call) -> Object:
        with self.store.changed:
            if call.method == "GET":
                return self._find(call) if call.name else self._list(call)
            if call.method == "POST":
                if call.resource == "rayclusters":
                    check_ray_cluster(call.body)
                    self._prune(call.body)
                return self.store.create(call.resource, call.namespace, call.body)
            if "apply-patch" in call.content_type:
                return self._apply(call)
            found = self._find(call)
            if call.method == "PATCH":
                return self._patch(call, found)
            options = call.body if isinstance(call.body, dict) else {}
            grace = call.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
            return self.store.delete(call.resource, found, None if grace is None else int(grace))

    def _find(self, call: _Call) -> Object:
        return self.store.find(call.resource, call.namespace, call.name)

    def _list(self, call: _Call) -> Object:
        selector = call.query.get("labelSelector", "")
        version, items = str(self.store.version), self.store.select(call.resource, call.namespace, selector)
        if call.resource == "pods" and self.stale_lists > 0 and not call.is_admin:
            self.stale_lists -= 1
            version, frozen = self._frozen
            items = [one for one in frozen if matches(one["metadata"].get("labels") or {}, selector)]
        if "fieldSelector" in call.query:
            name = call.query["fieldSelector"].partition("metadata.name=")[2]
            items = [one for one in items if one["metadata"]["name"] == name]
        kind = "PodList" if call.resource == "pods" else "RayClusterList"
        return {"kind": kind, "metadata": {"resourceVersion": version}, "items": items}

    def _patch(self, call: _Call, found: Object) -> Object:
        if call.sub == "resize" and not self.has_resize:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if call.content_type == "application/json-patch+json":
            after = patched(found, call.body)
        elif "merge-patch" in call.content_type:
            after = merged(found, call.body)
        else:
            raise Refused(415, "UnsupportedMediaType", f"{call.content_type!r} is not a kind of patch")
        if call.resource == "rayclusters":
            check_ray_cluster(after)
            self._prune(after)
        elif not call.sub and after.get("spec") != found.get("spec"):
            raise Refused(422, "Invalid", "pod updates may not change fields other than the image")
        if call.sub == "status":
            after = {**found, "status": after.get("status")}
        return self.store.replace(call.resource, found, after)

    def _apply(self, call: _Call) -> Object:
        """Server-side apply, by force: what the manager no longer mentions goes."""
        manager = call.query["fieldManager"]
        found = self.store.objects.get((call.resource, call.namespace, call.name))
        before = found or {"metadata": {"name": call.name}}
        asked = call.body["metadata"].get("resourceVersion")
        if found is not None and asked not in (None, found["metadata"]["resourceVersion"]):
            raise Refused(409, "Conflict", "the object has been modified; please apply your changes again")
        after = applied(before, call.body, manager)
        check_ray_cluster(after)
        self._prune(after)
        if found is None:
            return self.store.create(call.resource, call.namespace, after)
        return self.store.replace(call.resource, found, after)

    def _prune(self, given: Object) -> None:
        if self.prunes:
            prune_ray_cluster(given)

    def watch(self, call: _Call) -> Iterator[Object]:
        """Yield events from a resource version on, and bookmarks, until the time is over."""
        selector, at = call.query.get("labelSelector", ""), int(call.query.get("resourceVersion") or 0)
        limit_s = float(call.query.get("timeoutSeconds", 300))
        name = call.query.get("fieldSelector", "").partition("metadata.name=")[2]
        ends, begun, shown = time.monotonic() + limit_s, self._stops, at
        bookmark = time.monotonic()
        if not at:  # what is there comes first
            at = shown = self.store.version
            yield from ({"type": "ADDED", "object": one} for one in self._list(call)["items"])
        while True:
            with self.store.changed:
                if at < self.store.oldest:
                    gone = Refused(410, "Expired", f"too old resource version: {at} ({self.store.oldest})")
                    yield {"type": "ERROR", "object": gone.status()}
                    return
                fresh = [one for one in self.store.history if one[0] > at]
                if not fresh and self._stops == begun:
                    self.store.changed.wait(0.1)
            if self._stops != begun:
                raise ConnectionResetError
            for version, resource, event, one in fresh:
                at = version
                wanted = resource == call.resource and one["metadata"]["namespace"] == call.namespace
                wanted = wanted and name in ("", one["metadata"]["name"])
                if wanted and matches(one["metadata"].get("labels") or {}, selector):
                    shown = at
                    yield {"type": event, "object": one}
            late_s = BOOKMARK_S if shown != at else QUIET_BOOKMARK_S
            if call.query.get("allowWatchBookmarks") and time.monotonic() > bookmark + late_s:
                bookmark, shown = time.monotonic(), at
                kind = "Pod" if call.resource == "pods" else "RayCluster"
                yield {
                    "type": "BOOKMARK",
                    "object": {"kind": kind, "metadata": {"resourceVersion": str(at)}},
                }
            if time.monotonic() > ends:
                return


@dataclass
class _Call:
    """A request, taken apart."""

    method: str
    resource: str
    namespace: str
    name: str
    sub: str
    query: dict[str, str]
    content_type: str = ""
    body: Any = None
    is_admin: bool = False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def get_request(self) -> Any:
        made, address = super().get_request()
        if self.tls is not None:
            made = self.tls.wrap_socket(made, server_side=True, do_handshake_on_connect=False)
        return made, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients come and go."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubeApi
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        token = self.headers.get("Authorization", "").partition("Bearer ")[2]
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        is_watch = query.get("watch", "") in ("1", "true")
        self.api.asked.append(Asked(token, method, self.path, is_watch))
        self._note_certificate()
        fault = None if token == ADMIN else self._fault(method)
        if fault is not None and fault.gate is not None:
            fault.gate.wait(60)
        if fault is not None and not fault.after and self._fails(fault):
            return
        try:
            role = self.api.role_of(token)
            body = json.loads(raw) if raw else None
            if parts.path == _REVIEW:
                answer, code = self._review(role, body), 201
            else:
                call = self._call(method, parts.path, query, body)
                call.is_admin = role is None
                self._authorize(role, call, is_watch)
                if is_watch:
                    self._stream(call)
                    return
                answer, code = self.api.answer(call), 201 if method == "POST" else 200
        except Refused as refused:
            answer, code = refused.status(), refused.code
        except ValueError as error:
            answer, code = Refused(400, "BadRequest", str(error)).status(), 400
        if fault is not None and fault.after and self._fails(fault):
            return
        self._send(code, answer)

    def _call(self, method: str, path: str, query: dict[str, str], body: Any) -> _Call:
        found = _PATH.match(path)
        version = found["version"] if found and found["group"] == "ray.io" else None
        known = found is not None and found["resource"] in _GROUPS
        if not known or (version is not None and version not in self.api.versions):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        assert found is not None
        return _Call(
            method,
            found["resource"],
            found["namespace"],
            found["name"] or "",
            found["sub"] or "",
            query,
            self.headers.get("Content-Type", "").partition(";")[0],
            body,
        )

    def _authorize(self, role: Role | None, call: _Call, is_watch: bool) -> None:
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(call.method)
        verb = verb or ("watch" if is_watch else "get" if call.name else "list")
        group = _GROUPS[call.resource]
        resource = f"{call.resource}/{call.sub}" if call.sub else call.resource
        # A server takes the name of a selector for the name of the object.
        selected = call.query.get("fieldSelector", "").partition("metadata.name=")[2]
        if not allows(role, group, resource, verb, call.name or selected):
            full = f"{call.resource}.{group}" if group else call.resource
            name = f' "{call.name}"' if call.name else ""
            raise Refused(
                403,
                "Forbidden",
                f'{full}{name} is forbidden: User "system:serviceaccount:{call.namespace}:ray" cannot {verb} '
                f'resource "{resource}" in API group "{group}" in the namespace "{call.namespace}"',
                name=call.name,
                kind=call.resource,
            )

    def _review(self, role: Role | None, body: Object) -> Object:
        asked = body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        allowed = allows(role, asked.get("group", ""), resource, asked["verb"], asked.get("name", ""))
        return {**body, "kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}

    def _stream(self, call: _Call) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for event in self.api.watch(call):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (ConnectionError, OSError):
            self.close_connection = True

    def _fault(self, method: str) -> Fault | None:
        for fault in self.api.faults:
            if fault.times > 0 and fault.method == method and fault.path in self.path:
                fault.times -= 1
                return fault
        return None

    def _fails(self, fault: Fault) -> bool:
        if fault.cut:
            self.close_connection = True
            self.connection.close()
            return True
        if fault.status:
            refused = Refused(fault.status, "Fault", f"the server was told to answer {fault.status}")
            self._send(fault.status, fault.body or refused.status(), fault.headers)
            return True
        return False

    def _send(self, code: int, answer: Object, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(raw)

    def _note_certificate(self) -> None:
        shown = getattr(self.connection, "getpeercert", lambda: None)() or {}
        for part in shown.get("subject", ()):
            self.api.client_names += [value for key, value in part if key == "commonName"]


@contextmanager
def running_api(tls: ssl.SSLContext | None = None) -> Iterator[KubeApi]:
    api = KubeApi(tls)
    try:
        yield api
    finally:
        api.close()
