"""What the runtime is told after every tick: who serves it, how large it may become, and why requests wait.

Each is an outlet of the Monitor. A runtime that could not be read is not called again in the same tick.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from muster.autoscaler.events import Event
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lease import Lease
from muster.autoscaler.status_files import PublishedStatus, write_status
from muster.autoscaler.tick import Tick
from muster.autoscaler.tick_interval import picture_of
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


REFRESH_S = 5.0  # spend and idle times move although nothing changes


class StatusFile:
    """Keeps `status.json` of one cluster up to date."""

    def __init__(
        self,
        home: ClusterHome,
        events: Callable[[], tuple[Event, ...]],
        metrics_port: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._home, self._events, self._metrics_port = home, events, metrics_port
        self._written: object = None
        self._written_at = float("-inf")

    def hear(self, tick: Tick) -> None:
        events, port = self._events(), self._metrics_port()
        verdicts = tuple((v.subject, v.subject_id, v.reason, v.count) for v in tick.plan.verdicts)
        content = (picture_of(tick), verdicts, events, port, tick.interval_s)
        if content == self._written and tick.plan.at - self._written_at < REFRESH_S:
            return
        write_status(self._home, published(tick, events, port))
        self._written, self._written_at = content, tick.plan.at


def published(tick: Tick, events: tuple[Event, ...] = (), metrics_port: int | None = None) -> PublishedStatus:
    """One moment of the cluster, complete."""
    return PublishedStatus(
        cluster_name=tick.spec.cluster_name,
        at=tick.plan.at,
        tick_id=tick.plan.tick_id,
        version=tick.ledger.version,
        interval_s=tick.interval_s,
        monitor_pid=os.getpid(),
        status=tick.status(),
        instances=tuple(tick.ledger.instances.values()),
        runtime=tick.runtime,
        quarantined=tick.plan.quarantined,
        recent_failures=tick.plan.report.failed_launches,
        config_problem=tick.config_problem,
        metrics_port=metrics_port,
        events=events,
    )
