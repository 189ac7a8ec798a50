"""Answer the requests of a `KubeClient` in virtual time: an API server whose answers fail by seed.

It stands below `KubeClient.request`: everything above, the client's own handling of errors included, is the
code that runs in production.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.kube.objects import Object, Refused, Store, check_ray_cluster, matches, merged, patched

from muster.base.rng import Stream
from muster.errors import ProviderMisconfigured, Throttled
from muster.providers.kuberay.client import JSON_PATCH, Answer, KubeClient, KubePaths
from muster.providers.kuberay.credentials import KubeAccess
from muster.providers.kuberay.ray_cluster import quantity
from muster.providers.kuberay.watch import SILENT_S
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

NAME = "simulated"
PATHS = KubePaths(NAME, NAME)
BOOKMARK_S = 10.0  # a minute on real servers; like all time-outs of the simulation it is shorter
FAULTS: Mapping[str, tuple[float, float]] = {
    "api_breaks": (0.01, 0.15),  # per request: no answer, and no effect
    "api_refuses": (0.01, 0.1),  # per request: 429, 500 or 503
    "api_away": (0.0005, 0.005),  # per request: no answers for a while
    "token_expired": (0.005, 0.05),  # per request: 401, and a fresh token is accepted
    "rights_taken": (0.002, 0.02),  # per request: 403 to one verb for a while
    "patch_conflicts": (0.02, 0.7),  # per patch: somebody has changed the object meanwhile
    "patch_reply_lost": (0.02, 0.2),  # per patch: it is in force, and nobody knows
    "list_stale": (0.05, 0.5),  # per list of pods: from a cache that is behind
    "watch_ends": (0.002, 0.03),  # per look into a stream: it ends as a stream does
    "watch_breaks": (0.002, 0.03),  # likewise: in the middle
    "watch_hangs": (0.0005, 0.003),  # likewise: nothing comes until the client gives up
    "watch_expired": (0.0005, 0.005),  # likewise: 410, the history was compacted
}
_PATH = re.compile(
    r"/(?:api/v1|apis/ray\.io/v1)/namespaces/[^/]+/(pods|rayclusters)(?:/([^/]+))?(?:/(\w+))?$"
)


class SimEvents:
    """A stream that yields an empty line while nothing comes."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def stop(self) -> None:
        """Nobody waits in it."""

    close = stop


class SimKubeApi:
    """The server: one RayCluster and its pods; `sync` lets operator and kubelets write first."""

    def __init__(self, world: World, faults: Faults, draw: Stream) -> None:
        self._world, self._faults = world, faults
        self.store = Store(world.now)
        self.sync: Callable[[], None] = lambda: None
        self.resize: Callable[[str, dict[str, float]], None] = lambda name, desired: None
        self.on_patch: Callable[[Object, Object], None] = lambda before, after: None
        self.is_quiet = False  # the last look into a stream brought nothing
        self.lacks = {("delete", "rayclusters")} if draw.random() < 0.7 else set()
        if draw.random() < 0.5:
            self.lacks.add(("watch", "rayclusters"))  # as in the Role that KubeRay gives
        if draw.random() < 0.15:
            self.lacks.add(("patch", "pods/resize"))
        self._away_until = 0.0
        self._taken: tuple[float, tuple[str, str]] = (0.0, ("", ""))
        self._old: tuple[str, list[Object]] | None = None  # the last list of pods but one

    def client(self) -> KubeClient:
        return SimKubeClient(self)

    def request(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], is_stream: bool
    ) -> Answer:
        parts = urlsplit(path)
        query = dict(parse_qsl(parts.query))
        self._fail()
        if self._faults.hit("token_expired"):
            return _answer(401, Refused(401, "Unauthorized", "Unauthorized").status())
        if self._faults.hit("api_refuses"):
            code = self._faults.stream("api_refuses").choice((429, 500, 503))
            made = _answer(code, Refused(code, "Busy", "simulated").status())
            made.retry_after = "2" if code == 429 else None
            return made
        with self.store.changed:
            try:
                body = msgspec.json.decode(data) if data else None
                if parts.path.endswith("selfsubjectaccessreviews"):
                    return _answer(201, self._review(body))
                found = _PATH.match(parts.path)
                if found is None:
                    raise Refused(404, "NotFound", "the server could not find the requested resource")
                resource, name, sub = found[1], found[2] or "", found[3] or ""
                self._authorize(method, resource, name, sub, is_stream)
                self.sync()
                if is_stream:
                    made = Answer(200)
                    made.events = SimEvents(self._watch(resource, query))  # type: ignore[assignment]
                    return made
                return _answer(200, self._serve(method, resource, name, sub, query, body, headers))
            except Refused as refused:
                return _answer(refused.code, refused.status())

    def _fail(self) -> None:
        if self._faults.hit("api_away"):
            self._away_until = self._world.time + self._faults.between("api_away", 20, 400)
        is_away = self._world.time < self._away_until and not self._faults.stopped
        if is_away or self._faults.hit("api_breaks"):
            raise ConnectionResetError("simulated: no answer")

    def _authorize(self, method: str, resource: str, name: str, sub: str, is_stream: bool) -> None:
        if self._faults.hit("rights_taken"):
            draw, for_s = self._faults.stream("rights_taken"), self._faults.between("rights_taken", 20, 200)
            verbs = (("patch", "rayclusters"), ("get", "rayclusters"), ("list", "pods"), ("watch", "pods"))
            self._taken = (self._world.time + for_s, draw.choice(verbs))
        verb = {"PATCH": "patch", "DELETE": "delete", "POST": "create"}.get(method, "get" if name else "list")
        right = ("watch" if is_stream else verb, f"{resource}/{sub}" if sub else resource)
        is_taken = self._world.time < self._taken[0] and not self._faults.stopped
        if right in self.lacks or (is_taken and right == self._taken[1]):
            raise Refused(403, "Forbidden", f"cannot {right[0]} resource {right[1]}")

    def _review(self, body: Any) -> Object:
        wanted = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": (wanted["verb"], wanted["resource"]) not in self.lacks}}

    def _serve(
        self,
        method: str,
        resource: str,
        name: str,
        sub: str,
        query: Mapping[str, str],
        body: Any,
        headers: Mapping[str, str],
    ) -> Object:
        if not name:
            return self._list(resource, query)
        found = self.store.find(resource, NAME, name)
        if method == "GET":
            return found
        if method == "DELETE":
            return self.store.delete(resource, found)
        if resource == "rayclusters" and self._faults.hit("patch_conflicts"):
            found = self._change_status(found)
        change = patched if headers.get("Content-Type") == JSON_PATCH else merged
        after = change(found, body)
        if resource == "rayclusters":
            check_ray_cluster(after)
            self.on_patch(found, after)
            after = self.store.replace(resource, found, after)
        elif sub == "resize":
            self._resize(name, after)
        if self._faults.hit("patch_reply_lost"):
            raise ConnectionResetError("simulated: the reply was lost")
        return after

    def _resize(self, name: str, after: Object) -> None:
        limits = after["spec"]["containers"][0]["resources"]["limits"]
        desired = {"CPU": float(quantity(limits["cpu"])), "memory": float(quantity(limits["memory"]))}
        try:
            self.resize(name, desired)
        except Throttled as error:
            raise Refused(429, "TooManyRequests", str(error)) from None
        except ProviderMisconfigured as error:
            raise Refused(422, "Invalid", str(error)) from None

    def _change_status(self, found: Object) -> Object:
        after = copy.deepcopy(found)
        after["status"] = {"changes": (found.get("status") or {}).get("changes", 0) + 1}
        return self.store.replace("rayclusters", found, after)

    def _list(self, resource: str, query: Mapping[str, str]) -> Object:
        selector = query.get("labelSelector", "")
        version, items = str(self.store.version), self.store.select(resource, NAME, selector)
        if resource == "pods":
            old, self._old = self._old, (version, copy.deepcopy(items))
            if old is not None and self._faults.hit("list_stale"):
                version, items = old
        return {"metadata": {"resourceVersion": version}, "items": items}

    def _watch(self, resource: str, query: Mapping[str, str]) -> Iterator[bytes]:
        faults, store, world = self._faults, self.store, self._world
        selector, at = query.get("labelSelector", ""), int(query.get("resourceVersion") or 0)
        ends, bookmark = world.time + float(query["timeoutSeconds"]), world.time
        if not at:
            at = store.version
            for one in store.select(resource, NAME, selector):
                yield _event("ADDED", one)
        while world.time < ends and not faults.hit("watch_ends"):
            self._look()
            if at < store.oldest:
                yield _event("ERROR", Refused(410, "Expired", "too old resource version").status())
                return
            if faults.hit("watch_hangs"):
                yield from self._hang()
            for version, kind, event, one in store.history[
                bisect_right(store.history, at, key=_version_of) :
            ]:
                at = version
                if kind == resource and matches(one["metadata"].get("labels") or {}, selector):
                    yield _event(event, one)
            if world.time >= bookmark + BOOKMARK_S:
                bookmark = world.time
                yield _event("BOOKMARK", {"metadata": {"resourceVersion": str(at)}})
            self.is_quiet = True
            yield b""

    def _look(self) -> None:
        self._fail()
        with self.store.changed:
            self.sync()
        if self._faults.hit("watch_breaks"):
            raise ConnectionResetError("simulated: the stream broke")
        if self._faults.hit("watch_expired"):
            self.store.forget_history()

    def _hang(self) -> Iterator[bytes]:
        until = self._world.time + SILENT_S
        while self._world.time < until and not self._faults.stopped:
            self.is_quiet = True
            yield b""
        raise TimeoutError("simulated: nothing came")


class SimKubeClient(KubeClient):
    """A KubeClient whose wire is the simulated server."""

    def __init__(self, api: SimKubeApi) -> None:
        super().__init__(KubeAccess(url=f"http://{NAME}", token="t"))
        self._api = api

    def request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], idle_s: float | None = None
    ) -> Answer:
        return self._api.request(method, path, data, headers, idle_s is not None)


def _is_of(kind: str, one: Object, resource: str, selector: str) -> bool:
    return kind == resource and matches(one["metadata"].get("labels") or {}, selector)


def _version_of(change: tuple[int, str, str, Object]) -> int:
    return change[0]


def _answer(code: int, content: Object) -> Answer:
    return Answer(code, content=msgspec.json.encode(content))


def _event(kind: str, one: Object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": one})
