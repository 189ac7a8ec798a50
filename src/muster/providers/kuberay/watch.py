"""A ClusterObject is the RayCluster as it was last seen; a ClusterWatch follows it where that is allowed.

The Role that KubeRay gives its autoscaler has no right to watch a RayCluster: it is read at each tick then.
Where an administrator has given more (deploy/kuberay/role.yaml), changes come by themselves, and only what is
to be patched is read first.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec

from muster.base.clock import Clock
from muster.base.foreign import error_text
from muster.base.log import OnChange
from muster.providers.kuberay.client import EventStream, KubeClient, KubeError, KubePaths

logger = logging.getLogger(__name__)

WATCH_S = 240  # a watch is begun anew after this: the server ends it
SILENT_S = 90.0  # bookmarks come every minute: a connection that brings nothing for longer is broken
RETRY_S = (0.5, 30.0)
DENIED_S = 600.0  # then a Role that was added meanwhile is noticed
_DENIED, _EXPIRED = 403, 410


class ClusterObject:
    """A ClusterObject is shared by the thread that reads and patches, the one that watches, and the loop."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock) -> None:
        self._client, self._paths, self._clock = client, paths, clock
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._seen_at = float("-inf")
        self.problem: KubeError | None = None

    def read(self) -> dict[str, Any]:
        """Reads the object anew."""
        try:
            found = self._client.get(self._paths.ray_cluster)
        except KubeError as error:
            self.problem = error
            raise
        with self._lock:
            self._found, self._seen_at, self.problem = found, self._clock.monotonic(), None
        return found

    def note(self, found: dict[str, Any] | None) -> None:
        """Takes what a watch brings, unless a read was newer; None: nothing has changed."""
        with self._lock:
            self._seen_at, self.problem = self._clock.monotonic(), None
            if found is not None and _version(found) > _version(self._found or {}):
                self._found = found

    def last(self) -> dict[str, Any] | None:
        """Returns the newest answer; None before the first."""
        return self._found

    def age_s(self) -> float:
        return self._clock.monotonic() - self._seen_at


class ClusterWatch:
    """A ClusterWatch is started once, and closed. It never asks for more than the server allows."""

    def __init__(self, client: KubeClient, paths: KubePaths, cluster: ClusterObject) -> None:
        self._client, self._paths, self._cluster = client, paths, cluster
        self._version = ""  # from which the next stream goes on; "": it begins with the object as it is
        self._stream: EventStream | None = None
        self._is_there = False  # the object was seen, and has not been deleted since
        self._ended = threading.Event()
        self._changes = OnChange(logger)
        self._thread = threading.Thread(target=self._run, name="kuberay-cluster", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_current(self) -> bool:
        """Returns whether changes come by themselves at present, so that nobody needs to read."""
        return self._stream is not None and self._is_there

    def close(self) -> None:
        self._ended.set()
        stream = self._stream
        if stream is not None:
            stream.stop()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        pause_s = RETRY_S[0]
        while not self._ended.is_set():
            try:
                self._follow()
                pause_s = RETRY_S[0]
            except Exception as error:  # noqa: BLE001 - without a watch the object is read
                if self._ended.is_set():
                    return
                self._ended.wait(self._pause_after(error, pause_s))
                pause_s = min(2 * pause_s, RETRY_S[1])

    def _pause_after(self, error: Exception, pause_s: float) -> float:
        code = error.code if isinstance(error, KubeError) else 0
        if code == _DENIED:
            self._changes.log(
                logging.INFO,
                "watch",
                "the RayCluster is read at each tick, as its service account may not watch it:"
                " deploy/kuberay/role.yaml has the verb",
            )
            return DENIED_S
        if code == _EXPIRED:  # what was missed is known from a new beginning
            self._version = ""
            return RETRY_S[0]
        self._changes.log(logging.WARNING, "watch", f"the RayCluster cannot be watched: {error_text(error)}")
        return getattr(error, "retry_after_s", None) or pause_s

    def _follow(self) -> None:
        """Reads a watch to its end."""
        query: dict[str, object] = {
            "fieldSelector": f"metadata.name={self._paths.cluster}",
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_S,
        }
        query |= {"resourceVersion": self._version} if self._version else {}
        with self._client.stream(self._paths.clusters, query, SILENT_S) as stream:
            try:
                self._stream = stream
                self._changes.forget("watch")
                for line in stream:
                    if self._ended.is_set():
                        return
                    self._take(msgspec.json.decode(line))
            finally:
                self._stream = None

    def _take(self, event: dict[str, Any]) -> None:
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
