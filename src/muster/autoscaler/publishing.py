"""What the monitor publishes after a tick: `status.json` for people's commands, verdicts for the engine.

Written when something changed, and now and then so that readers see that the monitor lives; at most once
per tick.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from muster.autoscaler.events import Event
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.published import PublishedStatus
from muster.autoscaler.status_files import write_status
from muster.autoscaler.tick import Tick
from muster.autoscaler.tick_interval import picture_of

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
