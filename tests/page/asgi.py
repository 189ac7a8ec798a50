"""Call an ASGI application without a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self) -> object:
        return json.loads(self.body)


def ask(
    app, path: str = "/", method: str = "GET", query: str = "", stop_after: int = 0, **headers: str
) -> Answer:
    """Return the answer; `stop_after`: the client goes away after so many bytes of an endless one."""
    named = {name.replace("_", "-"): value for name, value in {"host": "localhost", **headers}.items()}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    return ask_raw(app, path, method, query, pairs, stop_after)


def ask_raw(app, path: str, method: str, query: str, headers: list, stop_after: int = 0) -> Answer:
    got: dict = {"status": 0, "headers": [], "body": b""}
    gone = asyncio.Event()

    async def receive():
        if got.get("asked"):
            await gone.wait()
            return {"type": "http.disconnect"}
        got["asked"] = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        if message["type"] == "http.response.start":
            got["status"], got["headers"] = message["status"], message["headers"]
        else:
            got["body"] += message.get("body", b"")
            if stop_after and len(got["body"]) >= stop_after:
                gone.set()

    async def run():
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())
    found = {name.decode().lower(): value.decode("latin-1") for name, value in got["headers"]}
    body = (
        gzip.decompress(got["body"])
        if found.get("content-encoding") == "gzip" and got["body"]
        else got["body"]
    )
    return Answer(got["status"], found, body)
