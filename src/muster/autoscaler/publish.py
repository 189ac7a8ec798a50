"""What the runtime is told after every tick: who serves it, how large it may become, and why requests wait.

Each is an outlet of the Monitor. A runtime that could not be read is not called again in the same tick.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.autoscaler.lease import Lease
from muster.autoscaler.tick import Tick
from muster.runtimes.ray.client import GcsLink
from muster.runtimes.ray.publish import Announcer
from muster.runtimes.ray.verdict_board import BoardWriter

LEASE_SPACE, LEASE_KEY = "__muster", "monitor"


class Announcement:
    """The flag for Ray's tools, the limits of the cluster, where the metrics are."""

    def __init__(self, announcer: Announcer, metrics_address: Callable[[], str]) -> None:
        self._announcer, self._metrics_address = announcer, metrics_address

    def hear(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._announcer.tell(tick.spec, self._metrics_address())


class VerdictBoard:
    """Why requests wait, for trials that need not wait in vain."""

    def __init__(self, writer: BoardWriter) -> None:
        self._writer = writer

    def hear(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._writer.show(tick.plan.at, tick.plan.verdicts)


class LeaseRenewal:
    """Keeps other monitors out."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def hear(self, tick: Tick) -> None:
        if tick.runtime is not None:
            self._lease.renew()


class LeaseKey:
    """The key of the lease in the cluster's own store."""

    def __init__(self, link: GcsLink) -> None:
        self._link = link

    def get(self) -> bytes | None:
        return self._link.kv_get(LEASE_KEY, LEASE_SPACE)

    def put(self, value: bytes) -> None:
        self._link.kv_put(LEASE_KEY, value, LEASE_SPACE)

    def delete(self) -> None:
        self._link.call("internal_kv_del", LEASE_KEY.encode(), False, LEASE_SPACE.encode(), timeout=5.0)
