"""A PodWatch keeps the pods of one RayCluster up to date: one list, and then a watch.

A watch that breaks is resumed where it was; one that the server no longer knows begins with a new list. The
list that a tick reads is never older than what was shown before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.errors import MusterError, ProviderError
from muster.providers.kuberay.client import KubeClient, KubeError, KubePaths, KubeUnreachable, with_query
from muster.providers.kuberay.pods import CLUSTER_LABEL, Pod, PodObject, read_pod
from muster.providers.kuberay.watch import EXPIRED, ResourceWatch

logger = logging.getLogger(__name__)

TOO_OLD_S = 180.0  # a list that nothing has confirmed for so long is not used
_MAX_OUTDATED = 20  # then the server has begun to count from the start, and its lists are taken as they are


class PodsNotKnown(MusterError):
    """The pods could not be listed lately; nothing may be concluded from that."""

    retryable = True


class WatchStatus(Struct):
    """The object of an ERROR event."""

    code: int = 0
    message: str = ""


class ListMetadata(Struct):
    """Has the version of a list."""

    version: str = msgspec.field(default="", name="resourceVersion")


class PodList(Struct):
    """A list of pods, each still as it was sent: one that cannot be read is left out."""

    metadata: ListMetadata
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


class WatchEvent(Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class VersionOnly(Struct):
    """A bookmark: an object without anything but a version."""

    metadata: ListMetadata


_PODS = msgspec.json.Decoder(PodObject, strict=False)
_LIST = msgspec.json.Decoder(PodList)
_EVENT = msgspec.json.Decoder(WatchEvent)
_BOOKMARK = msgspec.json.Decoder(VersionOnly)
_STATUS = msgspec.json.Decoder(WatchStatus)


class PodWatch(ResourceWatch):
    """Knows the pods once `routine` has listed them."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock) -> None:
        super().__init__(client, paths.pods, "kuberay-pods")
        self._paths, self._clock = paths, clock
        self._selector = f"{CLUSTER_LABEL}={paths.cluster}"
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._newest = 0  # version that was ever shown
        self._outdated = 0  # lists in a row that were older
        self._confirmed_at: float | None = None  # None: never listed
        self._problem: Exception | None = None
        self._changes = OnChange(logger)

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods by name. Raises PodsNotKnown, or ProviderDenied, when they are not known."""
        with self._lock:
            confirmed, problem = self._confirmed_at, self._problem
            if confirmed is not None and self._clock.monotonic() - confirmed <= TOO_OLD_S:
                return dict(self._pods)
        if isinstance(problem, ProviderError):
            raise problem
        why = "" if problem is None else f": {problem}"
        raise PodsNotKnown(f"the pods of {self._paths.cluster} are not known{why}")

    def age_s(self) -> float:
        """Return for how long nothing has confirmed the pods."""
        with self._lock:
            known = self._confirmed_at
        return float("inf") if known is None else self._clock.monotonic() - known

    # -- the routine --------------------------------------------------------------------------

    def _begin(self) -> dict[str, object]:
        if not self._version:
            self.relist()
        return {"labelSelector": self._selector, "resourceVersion": self._version}

    def _opened(self) -> None:
        self._confirm()

    def _failed(self, error: Exception) -> float | None:
        if not isinstance(error, KubeError) or error.code != EXPIRED:
            with self._lock:
                self._problem = error
            if not isinstance(error, KubeUnreachable):  # which the client logs
                text = f"the pods cannot be watched: {error_text(error)}"
                self._changes.log(logging.WARNING, "watch", text)
        return None

    def relist(self) -> None:
        """Replace what is known by a list, unless that is older than what was shown before."""
        query: dict[str, object] = {"labelSelector": self._selector}
        if self._newest:
            query |= {"resourceVersion": self._newest, "resourceVersionMatch": "NotOlderThan"}
        found = _LIST.decode(self._client.raw("GET", with_query(self._paths.pods, query)))
        version = _number(found.metadata.version)
        if version < self._newest and self._outdated < _MAX_OUTDATED:
            self._outdated += 1
            raise KubeError(
                f"the API server's list of pods is out of date (version {version}, {self._newest} was seen):"
                " it is asked again",
                code=0,
            )
        pods = dict(filter(None, map(self._read, found.items)))
        with self._lock:
            self._pods = pods
        self._version, self._newest, self._outdated = found.metadata.version, version, 0
        self._confirm()

    def _confirm(self) -> None:
        with self._lock:
            self._confirmed_at = self._clock.monotonic()
            self._problem = None
        self._changes.forget("watch")

    def _take(self, line: bytes) -> None:
        event = _EVENT.decode(line)
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            raise KubeError(f"the watch of pods ended: {status.message}", code=status.code)
        if event.type == "BOOKMARK":
            self._reached(_BOOKMARK.decode(event.object).metadata.version)
        else:
            self._change(event)
        self._confirm()

    def _reached(self, version: str) -> None:
        self._version = version or self._version
        self._newest = max(self._newest, _number(version))

    def _change(self, event: WatchEvent) -> None:
        version = _BOOKMARK.decode(event.object).metadata.version
        if 0 < _number(version) < self._newest:
            return  # a list that came meanwhile is newer
        read = self._read(event.object)
        with self._lock:
            if read is not None and event.type == "DELETED":
                self._pods.pop(read[0], None)
            elif read is not None:
                self._pods[read[0]] = read[1]
        self._reached(version)

    def _read(self, raw: Any) -> tuple[str, Pod] | None:  # noqa: ANN401 - msgspec.Raw is bytes-like
        """Return the pod with its name; one that cannot be read is reported, and not there."""
        try:
            pod = read_pod(_PODS.decode(raw), self._clock.now())
        except msgspec.DecodeError as error:
            self._changes.log(logging.WARNING, str(error), f"a pod is left out: it cannot be read ({error})")
            return None
        return None if pod is None else (pod.name, pod)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
