"""Reads what clouds announce about machines from the cluster's key-value store; `host.node_notices` writes.

A GcsNoticeBoard is the NoticeSource of a monitor. It removes notices that are long over, and nothing else.
A tuner asks with `notices_of` why nodes are drained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from muster.base.clock import Clock, SystemClock
from muster.base.text import shortened
from muster.cluster.model import Notice
from muster.cluster.ports import NoticeReport
from muster.cluster.snapshot import Quarantined
from muster.host.node_notices import PREFIX, SPACE
from muster.runtimes.ray.client import GcsClient

KEPT_S = 7200.0  # after its deadline, or after it was read
LOOK_S = 1.0  # at most so often, between two ticks


class GcsNoticeBoard:
    """A GcsNoticeBoard reads the notices of every machine at once; raises an EngineError without a GCS."""

    def __init__(self, client: GcsClient, clock: Clock | None = None) -> None:
        self._client, self._clock = client, clock or SystemClock()
        self._looked_at = float("-inf")
        self._stamp: object = frozenset()

    def read(self) -> NoticeReport:
        values = self._client.kv_with_prefix(PREFIX, SPACE)
        self._note(values)
        notices: list[Notice] = []
        damaged: list[Quarantined] = []
        for key, value in sorted(values.items()):
            name = key.removeprefix(PREFIX)
            try:
                notice = msgspec.json.decode(value, type=Notice)
                if notice.at is None:
                    raise ValueError("it has no time")
            except (msgspec.DecodeError, ValueError) as error:
                damaged.append(
                    Quarantined(source=f"notice {shortened(name, 60)}", message=f"{error}: ignored")
                )
                continue
            if notice.cloud_id != name:
                text = f"it names {shortened(notice.cloud_id, 60)}: ignored"
                damaged.append(Quarantined(source=f"notice {shortened(name, 60)}", message=text))
            elif self._clock.now() - max(notice.deadline or 0.0, notice.at or 0.0) > KEPT_S:
                self._client.kv_delete(key, SPACE)
            else:
                notices.append(notice)
        return NoticeReport(notices=tuple(notices), damaged=tuple(damaged))

    def stamp(self) -> object:
        """Returns a value that changes with the notices; looks at most once a second, and never raises."""
        if self._clock.monotonic() - self._looked_at >= LOOK_S:
            try:
                self._note(self._client.kv_with_prefix(PREFIX, SPACE))
            except Exception:  # noqa: BLE001 - the next tick meets the same error and reports it
                self._looked_at = self._clock.monotonic()
        return self._stamp

    def _note(self, values: dict[str, bytes]) -> None:
        self._looked_at, self._stamp = self._clock.monotonic(), frozenset(values.items())


def notices_of(client: GcsClient, node_ids: Iterable[str]) -> dict[str, Notice]:
    """Returns what the clouds announce about the machines of these nodes; damaged notices are left out."""
    cloud_ids, found = client.cloud_ids(), {}
    for node_id in node_ids:
        cloud_id = cloud_ids.get(node_id)
        text = client.kv_get(f"{PREFIX}{cloud_id}", SPACE) if cloud_id else None
        if text is not None:
            with contextlib.suppress(msgspec.DecodeError):
                found[node_id] = msgspec.json.decode(text, type=Notice)
    return found
