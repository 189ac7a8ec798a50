"""Keep two monitors from running one cluster, also on different hosts, by a key that the holder renews.

The ledger's lock keeps a second monitor of the same host and home out; the lease sees other hosts. Only
changes of the key count, never its times: the clocks of two hosts need not agree.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.cluster.ports import TickResult
from muster.errors import MusterError

SPACE, KEY = "__muster", "monitor"
RENEW_S = 5.0
STALE_S = 3 * RENEW_S  # a holder that has not renewed for so long is gone
_LOOK_S = 0.5


class KeyValueStore(Protocol):
    """The runtime's store; a GcsClient is one."""

    def kv_get(self, key: str, namespace: str) -> bytes | None: ...

    def kv_put(self, key: str, value: bytes, namespace: str) -> None: ...

    def kv_delete(self, key: str, namespace: str) -> None: ...


class AlreadyMonitored(MusterError):
    """An AlreadyMonitored error means that another monitor runs this cluster."""


class Holder(Struct, frozen=True, kw_only=True):
    """The monitor that runs the cluster; `beat` grows with every renewal."""

    host: str
    pid: int
    lease: str
    at: float  # for users
    beat: int = 0


class Lease:
    """Held between `take` and `release`."""

    def __init__(self, store: KeyValueStore, clock: Clock, ids: IdSource) -> None:
        self._store, self._clock = store, clock
        self._mine = Holder(
            host=socket.gethostname(), pid=os.getpid(), lease=ids.fresh("monitor"), at=clock.now()
        )
        self._renewed = float("-inf")

    def take(self, sleep: Callable[[float], object]) -> None:
        """Wait until the cluster is free and takes it. Raises AlreadyMonitored when its holder is alive."""
        self._wait_for(sleep)
        self._write()
        found = self._read()  # another monitor may have written at the same time: the last one stays
        if found is not None and found.lease != self._mine.lease:
            raise AlreadyMonitored(_conflict(found))

    def on_tick(self, tick: TickResult) -> None:
        """Renew the key after a tick. Raises AlreadyMonitored when another monitor has taken over."""
        if tick.runtime is None or self._clock.monotonic() - self._renewed < RENEW_S:
            return
        found = self._read()
        if found is not None and found.lease != self._mine.lease:
            raise AlreadyMonitored(_conflict(found))
        self._write()

    def release(self) -> None:
        """Delete the key, so that the next monitor need not wait."""
        found = self._read()
        if found is not None and found.lease == self._mine.lease:
            self._store.kv_delete(KEY, SPACE)

    def _wait_for(self, sleep: Callable[[float], object]) -> None:
        first = self._read()
        if first is None or _is_dead(first):
            return
        give_up = self._clock.monotonic() + STALE_S
        while self._clock.monotonic() < give_up:
            sleep(_LOOK_S)
            found = self._read()
            if found is None:
                return
            if found != first:
                raise AlreadyMonitored(_conflict(found))

    def _write(self) -> None:
        self._mine = replace(self._mine, at=self._clock.now(), beat=self._mine.beat + 1)
        self._store.kv_put(KEY, msgspec.json.encode(self._mine), SPACE)
        self._renewed = self._clock.monotonic()

    def _read(self) -> Holder | None:
        """A value that cannot be decoded names no holder."""
        value = self._store.kv_get(KEY, SPACE)
        if not value:
            return None
        try:
            return msgspec.json.decode(value, type=Holder)
        except (msgspec.DecodeError, ValueError):
            return None


def _is_dead(holder: Holder) -> bool:
    """A holder on this host whose process is gone need not be waited for."""
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _conflict(holder: Holder) -> str:
    return (
        f"this cluster already has a monitor: process {holder.pid} on {holder.host}; stop that one first, "
        f"or let it run"
    )
