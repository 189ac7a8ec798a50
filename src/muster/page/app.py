"""Route requests to what the page may show. None takes a path or fetches a URL.

All routes only read; with `actions` there is one more, which passes a request to the driver of an experiment.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import resources
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from muster.base.codec import encode_plain
from muster.errors import MusterError
from muster.page.catalog import Catalog
from muster.page.cluster_source import ClusterSource
from muster.page.experiment_session import PERIOD_S, ExperimentSession
from muster.page.trial_drawer import describe
from muster.stores.experiment.requests import ExperimentRequest, send_request

MAX_STREAMS = 24
HEARTBEAT_S = 10.0
CURVES_EVERY_S = 1.0
CURVES_SHARE = 0.005  # of a core, for making the bands again while results come in
MAX_SELECTED = 300
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STATIC = resources.files("muster.page") / "static"


class PageApp:
    """Holds what the routes share."""

    def __init__(self, catalog: Catalog, *, monotonic: Callable[[], float], actions: bool = False) -> None:
        self._actions = actions
        self._catalog = catalog
        self._monotonic = monotonic
        self._streams = 0
        self._static = static_files()
        self._table: dict[str, tuple[bytes, bytes]] = {}  # by key: encoded, gzipped
        self.is_closing = False

    def starlette(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._index),
                Route("/favicon.ico", self._icon),
                Route("/static/{name:path}", self._file),
                Route("/api/list", self._list),
                Route("/api/experiment/{key}/table", self._experiment_table),
                Route("/api/experiment/{key}/events", self._experiment_events),
                Route("/api/experiment/{key}/curves", self._curves),
                Route("/api/experiment/{key}/lineage", self._lineage),
                Route("/api/experiment/{key}/trial/{trial}", self._trial),
                Route("/api/cluster/{key}/view", self._cluster_view),
                Route("/api/cluster/{key}/events", self._cluster_events),
                Route("/api/cluster/{key}/why", self._why),
                *([Route("/api/experiment/{key}/request", self._act, methods=["POST"])] * self._actions),
            ]
        )

    async def _index(self, request: Request) -> Response:
        return self._static_response(request, "index.html")

    async def _icon(self, request: Request) -> Response:
        return self._static_response(request, "icon.svg")

    async def _file(self, request: Request) -> Response:
        return self._static_response(request, request.path_params["name"])

    def _static_response(self, request: Request, name: str) -> Response:
        """Serve the files that come with muster; a name is looked up among them, it is not a path."""
        found = self._static.get(name)
        if found is None:
            return Response("no such file\n", status_code=404, media_type="text/plain")
        content, kind, tag = found
        headers = {"etag": tag, "cache-control": "no-cache", "content-encoding": "gzip"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(content, media_type=kind, headers=headers)

    async def _list(self, request: Request) -> Response:
        return _json({**await to_thread.run_sync(self._catalog.listing), "actions": self._actions})

    async def _act(self, request: Request) -> Response:
        """Write what the user asks into the experiment's directory; its driver checks and applies it."""
        try:
            asked = msgspec.json.decode(await request.body(), type=ExperimentRequest)
        except msgspec.MsgspecError as error:
            return _problem(400, f"not a valid request: {error}")

        def send(_: Request, session: ExperimentSession) -> Response:
            send_request(session.path, asked)
            return _json({"requested": True})

        return await self._with_session(request, send)

    async def _experiment_table(self, request: Request) -> Response:
        return await self._with_session(request, self._encoded_table)

    def read_ahead(self) -> None:
        """Read the only experiment and pack its table while a browser starts."""
        keys = self._catalog.experiments
        with suppress(MusterError):  # a request will say why
            if len(keys) == 1 and (session := self._catalog.experiment(keys[0])) is not None:
                self._packed_table(keys[0], session)

    def _encoded_table(self, request: Request, session: ExperimentSession) -> Response:
        session.refresh()
        content = self._packed_table(request.path_params["key"], session)
        return Response(content, media_type="application/octet-stream", headers=_packed())

    def _packed_table(self, key: str, session: ExperimentSession) -> bytes:
        content = session.encoded()
        made = self._table.get(key)
        if made is None or made[0] is not content:
            made = self._table[key] = (content, gzip.compress(content, 1))
        return made[1]

    async def _curves(self, request: Request) -> Response:
        return await self._with_session(request, _curves)

    async def _lineage(self, request: Request) -> Response:
        return await self._with_session(request, lambda _, session: _json({"copies": session.lineage()}))

    async def _trial(self, request: Request) -> Response:
        return await self._with_session(request, _trial)

    async def _with_session(
        self, request: Request, answer: Callable[[Request, ExperimentSession], Response]
    ) -> Response:
        def run() -> Response:
            try:
                session = self._catalog.experiment(request.path_params["key"])
                if session is None:
                    return _problem(404, "no such experiment: it was not among those of this page")
                return answer(request, session)
            except MusterError as error:
                return _problem(503, str(error))

        return await to_thread.run_sync(run)

    async def _experiment_events(self, request: Request) -> Response:
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")

        def start(_: Request, session: ExperimentSession) -> Response:
            return self._stream(self._changes(session, since))

        return await self._with_session(request, start)

    def _stream(self, events: AsyncIterator[str]) -> Response:
        if self._streams >= MAX_STREAMS:
            return _problem(503, f"more than {MAX_STREAMS} pages are open: close some")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._counted(events), media_type="text/event-stream", headers=headers)

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for event in events:
                yield event
        finally:
            self._streams -= 1

    async def _changes(self, session: ExperimentSession, since: str) -> AsyncIterator[str]:
        """Yield what changed after `since`, which is the id of the last event that a client has seen."""
        generation, _, number = since.partition("-")
        sent = int(number) if number.isdigit() else -1
        curves, curves_at, told_at, shown = -1, -1.0, self._monotonic(), ""
        yield "retry: 1000\n\n"
        while not self.is_closing:
            await to_thread.run_sync(session.refresh)
            now, table = self._monotonic(), session.table
            if generation != table.generation or sent > table.change or sent < 0:
                generation, sent = table.generation, table.change
                yield _event("reset", {"generation": generation}, f"{generation}-{sent}")
                told_at = now
            state = f"{session.problem}{session.behind}"
            if table.change > sent or state != shown:
                delta = session.delta(sent)
                if delta["generation"] != generation:
                    continue  # another client's look has just changed the columns
                sent, shown, told_at = delta["change"], state, now
                yield _event("delta", delta, f"{generation}-{sent}")
            pause_s = max(CURVES_EVERY_S, session.curve_cost_s / CURVES_SHARE)
            if session.curve_change != curves and now - curves_at >= pause_s:
                curves, curves_at = session.curve_change, now
                yield _event("curves", {"behind": session.behind}, f"{generation}-{sent}")
            if now - told_at > HEARTBEAT_S:
                told_at = now
                yield ": still here\n\n"
            await asyncio.sleep(PERIOD_S)

    async def _cluster_view(self, request: Request) -> Response:
        def view(source: ClusterSource) -> Response:
            content = gzip.compress(encode_plain(source.view()), 1)
            return Response(content, media_type="application/json", headers=_packed())

        return await self._with_cluster(request, view, unreadable=503)

    async def _cluster_events(self, request: Request) -> Response:
        source = self._catalog.cluster(request.path_params["key"])
        if source is None:
            return _problem(404, "no such cluster")

        async def events() -> AsyncIterator[str]:
            shown, told_at = "", self._monotonic()
            yield "retry: 1000\n\n"
            while not self.is_closing:
                mark, now = await to_thread.run_sync(source.mark), self._monotonic()
                if mark != shown:
                    shown, told_at = mark, now
                    yield _event("cluster", {}, mark)
                elif now - told_at > HEARTBEAT_S:
                    told_at = now
                    yield ": still here\n\n"
                await asyncio.sleep(0.5)

        return self._stream(events())

    async def _why(self, request: Request) -> Response:
        subject = request.query_params.get("subject", "demand")[:200]
        return await self._with_cluster(request, lambda source: _json(source.why(subject)), unreadable=404)

    async def _with_cluster(
        self, request: Request, answer: Callable[[ClusterSource], Response], *, unreadable: int
    ) -> Response:
        source = self._catalog.cluster(request.path_params["key"])
        if source is None:
            return _problem(404, "no such cluster")
        try:
            return await to_thread.run_sync(answer, source)
        except MusterError as error:
            return _problem(unreadable, str(error))


def _curves(request: Request, session: ExperimentSession) -> Response:
    metric = request.query_params.get("metric", "")[:1000]
    wanted = [int(part) for part in request.query_params.get("rows", "").split(",") if part.isdigit()]
    if wanted:
        return _json({"rows": session.curves_of(wanted[:MAX_SELECTED], metric)})
    keep = request.query_params.get("keep", "")
    return _json(session.curve_band(metric, _kept(keep) if keep else None))


def _kept(text: str) -> npt.NDArray[np.bool_] | None:
    """Return which rows a client asks for, from bits in base64; None for anything else."""
    try:
        bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    except ValueError:
        return None
    return np.unpackbits(bits, bitorder="little").astype(bool) if len(bits) else None


def _trial(request: Request, session: ExperimentSession) -> Response:
    trial_id = request.path_params["trial"]
    folder = session.folder_of(trial_id)
    trial = session.trial(trial_id)
    if trial is None:
        return _problem(404, f"no trial {trial_id[:60]!r} in this experiment")
    return _json(describe(trial, session.path, folder))


def static_files() -> dict[str, tuple[bytes, str, str]]:
    """Return the page's own files by name: gzipped, with media type and tag."""
    found = {}
    for folder, prefix in ((_STATIC, ""), (_STATIC / "vendor", "vendor/")):
        for file in folder.iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None and file.is_file():
                content = file.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
                found[f"{prefix}{file.name}"] = (gzip.compress(content, 6, mtime=0), kind, tag)
    return found


def _packed() -> dict[str, str]:
    return {"content-encoding": "gzip", "cache-control": "no-store"}


def _json(value: object) -> Response:
    text = json.dumps(value, separators=(",", ":"), default=str).encode()
    if len(text) < 1000:
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})
    return Response(gzip.compress(text, 1), media_type="application/json", headers=_packed())


def _problem(status: int, text: str) -> Response:
    body = json.dumps({"problem": text}).encode()
    headers = {"cache-control": "no-store"}
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _event(kind: str, value: Any, number: str) -> str:  # noqa: ANN401 - plain data
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"
