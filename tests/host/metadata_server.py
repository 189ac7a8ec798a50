"""The metadata services of three clouds over real HTTP, for tests: what they answer is set by the test."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"


_ROOTS = re.compile(r"/(latest|computeMetadata|metadata)/")


class MetadataService:
    """Answers a path with a text, a status, or 404; as the real ones it wants headers.

    One service can be that of many machines: `address_of_each` has {id} for the machine's name, and answers
    of one machine are put with `machine`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str | int] = {}
        self.token = "token-1"
        self.asked: list[str] = []
        self.changed = threading.Condition()
        self.address = ""

    @property
    def address_of_each(self) -> str:
        return f"{self.address}/{{id}}"

    def put(self, path: str, answer: object, machine: str = "") -> None:
        """Set an answer: a text, a status, plain data; None removes it. Those who wait get it at once."""
        path = f"/{machine}{path}" if machine else path
        with self.changed:
            if answer is None:
                self.answers.pop(path, None)
            else:
                self.answers[path] = answer if isinstance(answer, str | int) else json.dumps(answer)
            self.changed.notify_all()

    def answer(self, path: str, headers: dict[str, str], query: dict[str, list[str]]) -> tuple[int, str]:
        self.asked.append(path)
        if not self._is_allowed(path, headers):
            return (401, "") if within(path).startswith("/latest/") else (403, "")
        if "wait_for_change" in query:
            with self.changed:
                etag = query["last_etag"][0]
                self.changed.wait_for(lambda: self.etag(path) != etag, float(query["timeout_sec"][0]))
        found = self.answers.get(path, 404)
        return (found, "") if isinstance(found, int) else (200, found)

    def etag(self, path: str) -> str:
        return str(abs(hash(self.answers.get(path))))

    def _is_allowed(self, path: str, headers: dict[str, str]) -> bool:
        path = within(path)
        if path.startswith("/latest/"):
            return headers.get("x-aws-ec2-metadata-token") == self.token
        wanted = (
            ("metadata-flavor", "google") if path.startswith("/computeMetadata") else ("metadata", "true")
        )
        return headers.get(wanted[0], "").lower() == wanted[1]


def within(path: str) -> str:
    """Return a path without the name of the machine that it is for."""
    found = _ROOTS.search(path)
    return path[found.start() :] if found else path


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    service = MetadataService()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_right = (
                within(self.path) == "/latest/api/token"
                and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            )
            self._send(200 if is_right else 400, service.token)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(*service.answer(parts.path, headers, parse_qs(parts.query)))

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("ETag", service.etag(urlsplit(self.path).path))
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield service
        server.shutdown()
