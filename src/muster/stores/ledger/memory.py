"""Keep a ledger without a file, with the same contract, for the simulator and for tests.

The store outlives the controllers that use it, as a file would: kill the controller, build a new one on the
same store. Writes can fail before they happen (nothing is stored) or after (stored, and the caller is not
notified).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.codec import encode_plain
from muster.base.ids import InstanceId, RequestId
from muster.cluster.model import Instance
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import Quarantined
from muster.cluster.states import TERMINAL, InstanceState
from muster.errors import VersionConflict
from muster.stores.ledger.history import Decision, Spend, spend_of
from muster.stores.ledger.state import (
    DEFAULT_RETENTION,
    EMPTY_STATE,
    Retention,
    checked_writes,
    ended_at,
    raised_version,
)


class WriteFaults(Protocol):
    """WriteFaults raise to make a write fail. `operation` is "commit", "handed_over" or "raise_version"."""

    def before_write(self, operation: str) -> None:
        """Run before a write; an error here: nothing was stored."""
        ...

    def after_write(self, operation: str) -> None:
        """Run after a write; an error here: it is stored, and the caller does not know."""
        ...


class NoFaults:
    """NoFaults lets every write succeed."""

    def before_write(self, operation: str) -> None:
        pass

    def after_write(self, operation: str) -> None:
        pass


class MemoryInstanceStore:
    """A ledger that lives as long as this object."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,  # None: it is as late as the newest time written
        retention: Retention = DEFAULT_RETENTION,
        faults: WriteFaults | None = None,
    ) -> None:
        self._clock = clock
        self.retention = retention
        self._faults: WriteFaults = faults or NoFaults()
        self._state = EMPTY_STATE
        self._ended: dict[InstanceId, Instance] = {}  # in the order of their ends
        self._plans: deque[tuple[int, Plan]] = deque()  # decisions, oldest first

    @property
    def history(self) -> MemoryInstanceStore:
        """The past; this store is its own history."""
        return self

    def copy(self) -> MemoryInstanceStore:
        """Return a store with the content that this one has now; the simulator restores older ones."""
        other = MemoryInstanceStore(clock=self._clock, retention=self.retention)
        other._state, other._ended, other._plans = self._state, dict(self._ended), deque(self._plans)
        return other

    def load(self) -> Ledger:
        now = self._clock.now() if self._clock is not None else self._state.newest_at
        return self._state.ledger(now)

    def commit(self, version: int, plan: Plan) -> int:
        state = self._state
        if version != state.version:
            raise VersionConflict(version, state.version)
        if not state.changes(plan):
            return version
        records = checked_writes(plan, version + 1, state.instances, self._ended.__contains__)
        self._faults.before_write("commit")
        self._state = state.after(plan, records, version + 1)
        self._plans.append((version + 1, replace(plan, writes=records)))
        ended = sorted((r for r in records if r.state in TERMINAL), key=_end)
        self._ended.update((record.instance_id, record) for record in ended)
        self._prune(plan.at, self.retention.step + len(ended))
        self._faults.after_write("commit")
        return version + 1

    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        if any(request_id in self._state.outbox for request_id in request_ids):
            self._faults.before_write("handed_over")
            self._state = self._state.without_effects(request_ids)
            self._faults.after_write("handed_over")

    def raise_version(self, at_least: int) -> int:
        version = raised_version(self._state.version, at_least)
        if version != self._state.version:
            self._faults.before_write("raise_version")
            self._state = replace(self._state, version=version)
            self._faults.after_write("raise_version")
        return version

    def prune(self, now: float) -> int:
        """Drop everything that retention does not keep; returns how many records and decisions."""
        return self._prune(now, len(self._ended) + len(self._plans))

    def damaged(self) -> tuple[Quarantined, ...]:
        """Return nothing: no row can be unreadable here."""
        return ()

    def close(self) -> None:
        """Do nothing; the state stays."""

    def find(
        self, ids: Iterable[str] | None = None, states: Iterable[InstanceState] | None = None
    ) -> tuple[Instance, ...]:
        chosen = None if ids is None else frozenset(ids)
        wanted = None if states is None else frozenset(states)
        found = [
            record
            for record in (*self._state.instances.values(), *self._ended.values())
            if (chosen is None or record.instance_id in chosen) and (wanted is None or record.state in wanted)
        ]
        return tuple(sorted(found, key=lambda record: record.instance_id))

    def decisions(self, limit: int = 20, tick_id: str | None = None) -> tuple[Decision, ...]:
        kept = [each for each in reversed(self._plans) if tick_id is None or each[1].tick_id == tick_id]
        return tuple(
            Decision(
                version=version,
                tick_id=plan.tick_id,
                at=plan.at,
                moved={record.instance_id: record.state.name for record in plan.writes},
                actions=json.loads(encode_plain(plan.actions)),
                quarantined=json.loads(encode_plain(plan.quarantined)),
                verdicts=json.loads(encode_plain(plan.verdicts)),
            )
            for version, plan in kept[:limit]
        )

    def spend(self, now: float) -> Spend:
        memory = self._state.memory
        return spend_of(self._state.instances.values(), memory.spent - memory.uncharged, now)

    def _prune(self, now: float, limit: int) -> int:
        cutoff, dropped = now - self.retention.max_age_s, 0
        while self._ended and dropped < limit:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= self.retention.max_ended and ended_at(oldest) >= cutoff:
                break
            del self._ended[oldest.instance_id]
            dropped += 1
        gone = 0
        while self._plans and gone < limit:
            if len(self._plans) <= self.retention.max_decisions and self._plans[0][1].at >= cutoff:
                break
            self._plans.popleft()
            gone += 1
        return dropped + gone


def _end(record: Instance) -> tuple[float, str]:
    return (ended_at(record), record.instance_id)
