"""End nodes: everything in a node's session, and whatever carries the node's name in its environment.

Sends SIGTERM first, SIGKILL after a grace period, and checks that all is gone. Ray's workers are in process
separate groups, but in the session of their node. The calls block; callers bring a thread.
"""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.host.processes import ProcessInfo, find, send, table, was_started_with
from muster.providers.process.records import NodeDirectory, NodeRecord

logger = logging.getLogger(__name__)

GRACE_S = 5.0
KILL_S = 5.0  # a killed process that still exists after this hangs in the kernel
POLL_S = 0.05


class NodeProcesses:
    """Finds what still runs of one node; processes once seen as its own stay so."""

    def __init__(self, record: NodeRecord) -> None:
        self.record = record
        self._seen: set[tuple[int, str]] = set()

    def living(self, processes: Sequence[ProcessInfo], *, with_environments: bool) -> list[ProcessInfo]:
        """Return the living processes; `with_environments` also finds those that left the session."""
        family = _family(self._leader(), processes)
        entry = f"RAY_CLOUD_INSTANCE_ID={self.record.cloud_id}"
        found = [
            process
            for process in processes
            if process.is_alive
            and (
                process.pid in family
                or (process.pid, process.started) in self._seen
                or (with_environments and was_started_with(process.pid, entry))
            )
        ]
        self._seen.update((process.pid, process.started) for process in found)
        return found

    def _leader(self) -> int | None:
        """Return the session's number while its leader lives; a later session may get the same."""
        mark = self.record.process
        leader = None if mark is None else find(mark.pid)
        return (
            leader.pid if leader is not None and mark is not None and leader.started == mark.started else None
        )


class NodeStopper:
    """Ends the processes of terminated records, then marks the records as ended."""

    def __init__(self, directory: NodeDirectory, clock: Clock, grace_s: float = GRACE_S) -> None:
        self._directory, self._clock, self._grace_s = directory, clock, grace_s

    def end(self, records: Sequence[NodeRecord]) -> dict[str, list[int]]:
        """Return the processes that would not end, cloud id to process ids; normally empty."""
        nodes = [NodeProcesses(record) for record in records]
        left = self._signal_until_gone(nodes, signal.SIGTERM, self._grace_s)
        if left:
            left = self._signal_until_gone(nodes, signal.SIGKILL, KILL_S)
        for record in records:
            if record.cloud_id not in left:
                shutil.rmtree(record.temp_dir, ignore_errors=True)
                self._directory.change(record.cloud_id, partial(replace, ended_at=self._clock.now()))
        if left:
            logger.warning("processes that do not end, though killed: %s", left)
        return left

    def _signal_until_gone(
        self, nodes: Sequence[NodeProcesses], number: int, seconds: float
    ) -> dict[str, list[int]]:
        """Signal everything, newcomers as well, until nothing is left or time is up."""
        give_up = self._clock.monotonic() + seconds
        signalled: set[tuple[int, str]] = set()
        with_environments = True
        while True:
            processes = table()
            found = {
                node.record.cloud_id: node.living(processes, with_environments=with_environments)
                for node in nodes
            }
            fresh = [
                one for some in found.values() for one in some if (one.pid, one.started) not in signalled
            ]
            send(fresh, number)
            signalled.update((one.pid, one.started) for one in fresh)
            left = {cloud_id: [one.pid for one in some] for cloud_id, some in found.items() if some}
            if (not left and with_environments) or self._clock.monotonic() >= give_up:
                return left
            with_environments = not left  # nothing left in the session: check every process once more
            self._clock.sleep(POLL_S)


def _family(leader: int | None, processes: Sequence[ProcessInfo]) -> set[int]:
    """Return the session of the leader and its descendants."""
    if leader is None:
        return set()
    found = {process.pid for process in processes if process.session == leader} | {leader}
    while more := {one.pid for one in processes if one.parent in found and one.pid not in found}:
        found |= more
    return found


@dataclass(frozen=True)
class StopSummary:
    """What `stop_everything` did."""

    nodes: tuple[str, ...]  # ended by this call, the head last
    left: Mapping[str, list[int]]  # processes that would not end, by node; normally empty
    temp_dir: str  # removed; "" when there was none


def stop_everything(nodes: Path, clock: Clock, grace_s: float = GRACE_S) -> StopSummary:
    """End the workers, then the head, by their records; remove their temporary directory.

    End the monitor first, or it starts new ones. Repeating this does nothing more.
    """
    directory = NodeDirectory(nodes)
    open_records = [one for one in directory.records() if one.ended_at is None]
    marked = [
        directory.change(one.cloud_id, lambda now: replace(now, state="terminated")) for one in open_records
    ]
    found = [one for one in marked if one is not None]
    heads = [one for one in found if one.is_head]
    stopper = NodeStopper(directory, clock, grace_s)
    left = stopper.end([one for one in found if one not in heads])
    left.update(stopper.end(heads))
    ended = [one for one in found if one.cloud_id not in left]
    temp_dir = None if left else directory.remove_temp_root()
    for record in directory.records():
        if record.ended_at is not None:
            directory.forget(record.cloud_id)
    return StopSummary(
        nodes=tuple(one.cloud_id for one in sorted(ended, key=heads.__contains__)),
        left=left,
        temp_dir=str(temp_dir or ""),
    )
