"""Run what waits for the API server: routines that do one thing at a time, and watches of its resources.

A routine is a generator that yields how long it may rest. A thread runs it; the simulator runs the same
steps in virtual time.

The Role that KubeRay gives its autoscaler has no right to watch a RayCluster: it is read at each tick then.
Where an administrator has given more (deploy/kuberay/role.yaml), changes come by themselves, and only what is
to be patched is read first.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

import msgspec

from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.providers.kuberay.client import EventStream, KubeClient, KubeError, KubePaths, KubeUnreachable

logger = logging.getLogger(__name__)

WATCH_S = 240  # the server ends a watch after this, and the next one begins
SILENT_S = 90.0  # bookmarks come every minute: a connection that brings nothing for longer is broken
RETRY_S = (0.5, 30.0)  # first and longest pause after a failure
DENIED_S = 600.0  # then a Role that was added meanwhile is noticed
EXPIRED, _DENIED = 410, 403

Steps = Generator[float, None, None]


class Routine:
    """Steps of work with pauses in between; `wake` ends a pause early."""

    def __init__(self, name: str, steps: Steps) -> None:
        self._name, self._steps = name, steps
        self.woken = threading.Event()
        self.is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run the steps on a thread until `close`."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def step(self) -> float:
        """Do the next thing; return how long to rest after it."""
        return next(self._steps, 0.0)

    def wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        """End the steps; wait for the one that is under way."""
        self.is_closed = True
        self.wake()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self.is_closed:
            self.woken.wait(self.step())
            self.woken.clear()
        self._steps.close()


class ResourceWatch(ABC):
    """Follows one resource: a stream is read to its end, and the next one begins where it ended."""

    def __init__(self, client: KubeClient, path: str, name: str) -> None:
        self._client, self._path = client, path
        self._version = ""  # where the next stream begins; "": with what is there
        self._stream: EventStream | None = None
        self.routine = Routine(name, self._follow())

    def close(self) -> None:
        self.routine.is_closed = True
        stream = self._stream
        if stream is not None:
            stream.stop()
        self.routine.close()

    def _follow(self) -> Steps:
        pause_s, longest_s = RETRY_S
        while True:
            wait_s = 0.0
            try:
                common = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_S}
                with self._client.stream(self._path, {**self._begin(), **common}, SILENT_S) as stream:
                    self._stream = stream
                    self._opened()
                    for line in stream:
                        if line:  # a stream without a thread yields an empty one while nothing comes
                            self._take(line)
                        yield 0.0
                pause_s = RETRY_S[0]
            except Exception as error:  # noqa: BLE001 - whatever went wrong, it must be watched again
                if self.routine.is_closed:
                    return
                if getattr(error, "code", 0) == EXPIRED:
                    self._version = ""  # only a new beginning shows what was missed
                wait_s = self._failed(error) or getattr(error, "retry_after_s", None) or pause_s
                pause_s = min(2 * pause_s, longest_s)
            finally:
                self._stream = None
            yield wait_s

    @abstractmethod
    def _begin(self) -> dict[str, object]:
        """Return the query of the next stream."""

    @abstractmethod
    def _opened(self) -> None:
        """Note that the server has accepted the watch."""

    @abstractmethod
    def _take(self, line: bytes) -> None:
        """Take one event. Raises KubeError for one that ends the watch."""

    @abstractmethod
    def _failed(self, error: Exception) -> float | None:
        """Report a failure; return how long to wait, if not as usual."""


class ClusterObject:
    """Shared by the thread that reads and patches, the one that watches, and the loop."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock) -> None:
        self._client, self._paths, self._clock = client, paths, clock
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._seen_at = float("-inf")
        self.problem: KubeError | None = None

    def read(self) -> dict[str, Any]:
        """Read the object again."""
        try:
            found = self._client.get(self._paths.ray_cluster)
        except KubeError as error:
            self.problem = error
            raise
        with self._lock:
            self._found, self._seen_at, self.problem = found, self._clock.monotonic(), None
        return found

    def note(self, found: dict[str, Any] | None) -> None:
        """Take what a watch brings, unless a read was newer; None: nothing has changed."""
        with self._lock:
            self._seen_at, self.problem = self._clock.monotonic(), None
            if found is not None and _version(found) > _version(self._found or {}):
                self._found = found

    def last(self) -> dict[str, Any] | None:
        """Return the newest answer; None before the first."""
        return self._found

    def age_s(self) -> float:
        return self._clock.monotonic() - self._seen_at


class ClusterWatch(ResourceWatch):
    """Follows the object where the server allows it."""

    def __init__(self, client: KubeClient, paths: KubePaths, cluster: ClusterObject) -> None:
        super().__init__(client, paths.clusters, "kuberay-cluster")
        self._cluster = cluster
        self._query = {"fieldSelector": f"metadata.name={paths.cluster}"}
        self._is_there = False  # the object was seen, and has not been deleted since
        self._changes = OnChange(logger)

    def is_current(self) -> bool:
        """Return whether changes come by themselves at present, so that nobody needs to read."""
        return self._stream is not None and self._is_there

    def _begin(self) -> dict[str, object]:
        return {**self._query, **({"resourceVersion": self._version} if self._version else {})}

    def _opened(self) -> None:
        self._changes.forget("watch")

    def _failed(self, error: Exception) -> float | None:
        code = error.code if isinstance(error, KubeError) else 0
        if code == _DENIED:
            self._changes.log(
                logging.INFO,
                "watch",
                "the RayCluster is read at each tick, as its service account may not watch it:"
                " deploy/kuberay/role.yaml has the verb",
            )
            return DENIED_S
        if code != EXPIRED and not isinstance(error, KubeUnreachable):  # which the client logs
            text = f"the RayCluster cannot be watched: {error_text(error)}"
            self._changes.log(logging.WARNING, "watch", text)
        return None

    def _take(self, line: bytes) -> None:
        event = msgspec.json.decode(line)
        found: dict[str, Any] = event["object"]
        if event["type"] == "ERROR":
            raise KubeError(f"the watch ended: {found.get('message')}", code=int(found.get("code") or 0))
        self._version = str(found["metadata"].get("resourceVersion") or self._version)
        is_object = event["type"] in ("ADDED", "MODIFIED")
        self._is_there = is_object or (self._is_there and event["type"] != "DELETED")
        if self._is_there:  # one that is gone is read, for the server's answer
            self._cluster.note(found if is_object else None)


def _version(found: dict[str, Any]) -> int:
    version = str((found.get("metadata") or {}).get("resourceVersion") or "")
    return int(version) if version.isdecimal() else 0
