"""Which running nodes have died by themselves: asked at every listing, so it reads two process lines a node.

A node is dead when its session's leader is, or when its heart is. Ray's leader may outlive the raylet.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from muster.base.clock import Clock
from muster.host.processes import Process, ProcessMark, boot_id, lives, table
from muster.providers.process.records import NodeDirectory, NodeRecord

HEARTLESS_S = 120.0  # a node that has no heart after this will not get one


class Look:
    """One look at all nodes; the process table is read at most once, and only if a heart is to be found."""

    def __init__(self, directory: NodeDirectory, heart: str, clock: Clock) -> None:
        self._directory, self._heart, self._clock = directory, heart, clock

    def cause_of_death(self, record: NodeRecord) -> str:
        """Empty while the node is alive."""
        if not lives(record.process):
            said = self._directory.last_words(record.cloud_id)
            return f"its process has ended; it last said: {said}" if said else "its process has ended"
        if not self._heart or record.is_head:
            return ""
        if record.heart is None:
            return self._look_for_heart(record)
        return "" if lives(record.heart) else f"its {self._heart} has ended"

    def _look_for_heart(self, record: NodeRecord) -> str:
        found = self._found_heart(record)
        if found is not None:
            heart = ProcessMark(pid=found.pid, started=found.started, boot=boot_id())
            self._directory.change(record.cloud_id, lambda now: msgspec.structs.replace(now, heart=heart))
            return ""
        age_s = self._clock.now() - (record.started_at or self._clock.now())
        return f"no {self._heart} after {age_s:.0f} s" if age_s > HEARTLESS_S else ""

    def _found_heart(self, record: NodeRecord) -> Process | None:
        """A child of the leader: what a raylet starts bears its name too, for a moment."""
        leader = None if record.process is None else record.process.pid
        hearts = (one for one in self._processes if one.name == self._heart and one.lives)
        return next((one for one in hearts if one.parent == leader), None)

    @cached_property
    def _processes(self) -> list[Process]:
        return table()
