"""Read the past of a ledger, for `muster why` and `muster status`: ended machines, decisions, spend.

`open_history` works while the writer runs; both stores also offer the same questions as `store.history`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from muster.base import codec
from muster.cluster.cost import cost_of
from muster.cluster.model import Instance
from muster.cluster.snapshot import Memory
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.errors import LedgerCorrupt
from muster.stores.ledger.schema import LEDGER_SCHEMA
from muster.stores.ledger.state import Retention
from muster.stores.sqlite import Closing, Database, Row

_DECISION = "SELECT version, tick_id, at, moved, actions, quarantined, verdicts FROM decisions"
_CHUNK = 500  # ids per query: SQLite takes 999 values at most in its older builds


class Decision(Struct, frozen=True, kw_only=True):
    """What one tick decided, as stored; plain JSON data, so that old ones stay readable."""

    version: int
    tick_id: str
    at: float
    moved: Mapping[str, str]  # instance id -> the state it was put in
    actions: Sequence[Mapping[str, Any]]
    quarantined: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Mapping[str, Any]]


class Spend(Struct, frozen=True, kw_only=True):
    """Money, in the currency of the prices."""

    gone: float  # machines that have ended, pruned ones included
    live: float  # machines that are still there, up to now
    per_hour: float  # what the live ones cost

    @property
    def total(self) -> float:
        return self.gone + self.live


class SqliteHistory(Closing):
    """SqliteHistory reads the past from a ledger file, without unreadable rows, which the writer reports."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, ids: Iterable[str] | None = None, states: Iterable[InstanceState] | None = None
    ) -> tuple[Instance, ...]:
        """Return records, including ended ones, in the order of their ids. None means all, () means none."""
        with self._database.read_transaction():
            if ids is None:
                rows = self._database.execute("SELECT CAST(record AS BLOB) FROM instances")
                contents = [content for (content,) in rows]
            else:
                contents = self._records_of(sorted(set(ids)))
        wanted = None if states is None else frozenset(states)
        records = (record for content in contents if (record := _record(content)) is not None)
        found = [record for record in records if wanted is None or record.state in wanted]
        return tuple(sorted(found, key=lambda record: record.instance_id))

    def decisions(self, limit: int = 20, tick_id: str | None = None) -> tuple[Decision, ...]:
        """Return decisions, newest first."""
        if tick_id is None:
            rows = self._database.execute(f"{_DECISION} ORDER BY version DESC LIMIT ?", (limit,))
        else:
            sql = f"{_DECISION} WHERE tick_id = ? ORDER BY version DESC LIMIT ?"
            rows = self._database.execute(sql, (tick_id, limit))
        return tuple(decision for row in rows if (decision := _decision(*row)) is not None)

    def version(self) -> int:
        """The version of the ledger."""
        return int(self._database.execute("SELECT version FROM ledger")[0][0])

    def spend(self, now: float) -> Spend:
        with self._database.read_transaction():
            sql = "SELECT CAST(record AS BLOB) FROM instances WHERE terminal = 0"
            live = [_record(content) for (content,) in self._database.execute(sql)]
            memory = self._database.execute("SELECT CAST(value AS BLOB) FROM memory")
        gone = self._spent(memory[0][0]) if memory else 0.0
        return spend_of((record for record in live if record is not None), gone, now)

    def close(self) -> None:
        """Close a history that was opened separately; the history of a store closes with the store."""
        self._database.close()

    def _spent(self, memory: bytes) -> float:
        try:
            known = codec.decode(memory, Memory)
            return known.spent - known.uncharged
        except (ValueError, KeyError) as error:
            raise LedgerCorrupt(
                f"{self._database.path}: the row of its table `memory` is unreadable ({error})",
                fix="spend is not known. The writer moves the row to the table `damaged` at its next read",
            ) from error

    def _records_of(self, ids: Sequence[str]) -> list[bytes]:
        contents: list[bytes] = []
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            marks = ", ".join("?" * len(chunk))
            sql = f"SELECT CAST(record AS BLOB) FROM instances WHERE instance_id IN ({marks})"
            contents.extend(content for (content,) in self._database.execute(sql, chunk))
        return contents


def open_history(path: str | Path) -> SqliteHistory:
    """Open a ledger for reading, even while another process writes it; the caller closes it."""
    return SqliteHistory(Database.open_read_only(path, LEDGER_SCHEMA))


def spend_of(live: Iterable[Instance], gone: float, now: float) -> Spend:
    """Return the spend: live machines cost their price since they were bound; `gone` is that of others."""
    paid = [record for record in live if record.state in ON_CLOUD]
    return Spend(
        gone=gone,
        live=math.fsum(cost_of(record, now) for record in paid),
        per_hour=math.fsum(record.price_per_hour or 0.0 for record in paid),
    )


def _record(content: bytes) -> Instance | None:
    try:
        return codec.decode(content, Instance)
    except (ValueError, KeyError):
        return None


def _decision(*columns: Any) -> Decision | None:  # noqa: ANN401 - a row
    version, tick_id, at, *parts = columns
    try:
        moved, actions, quarantined, verdicts = (json.loads(part) for part in parts)
    except ValueError:
        return None
    return Decision(
        version=version,
        tick_id=tick_id,
        at=at,
        moved=moved,
        actions=actions,
        quarantined=quarantined,
        verdicts=verdicts,
    )


_ENDED = (
    "SELECT ended_at, instance_id FROM instances WHERE terminal = 1 ORDER BY ended_at, instance_id LIMIT ?"
)
_DECISIONS = "SELECT at, version, size FROM decisions ORDER BY version LIMIT ?"


@dataclass
class _Held:
    """What the file holds, counted once and then kept up to date: a commit need not count."""

    ended: int
    decisions: int
    decision_bytes: int


class Pruner:
    """Belongs to the store that writes the file; all but `all` runs inside its transaction."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self.retention = retention
        self._held: _Held | None = None

    def recount(self) -> None:
        """Count again when that next matters: another process wrote, or a write failed."""
        self._held = None

    def added(self, *, ended: int, decision_bytes: int) -> None:
        """Count one decision of this size and so many ended machines, just written by a commit."""
        if self._held is not None:
            self._held.ended += ended
            self._held.decisions += 1
            self._held.decision_bytes += decision_bytes

    def step(self, now: float, *, limit: int) -> int:
        """Drop at most `limit` records and `limit` decisions; return how many rows were dropped."""
        held = self._held = self._held or self._count()
        return self._drop_ended(held, now, limit) + self._drop_decisions(held, now, limit)

    def all(self, now: float) -> int:
        """Drop everything that is not to be kept, in separate transactions; return how many rows."""
        self.recount()
        total, dropped = 0, 1
        while dropped:
            with self._database.transaction():
                dropped = self.step(now, limit=self.retention.step)
            total += dropped
        return total

    def _count(self) -> _Held:
        ended = self._database.execute("SELECT count(*) FROM instances WHERE terminal = 1")[0][0]
        decisions, size = self._database.execute("SELECT count(*), coalesce(sum(size), 0) FROM decisions")[0]
        return _Held(ended, decisions, size)

    def _drop_ended(self, held: _Held, now: float, limit: int) -> int:
        cutoff, keep = now - self.retention.max_age_s, self.retention.max_ended
        if held.ended <= keep and not _older(self._database.execute(_ENDED, (1,)), cutoff):
            return 0
        oldest = self._database.execute(_ENDED, (limit,))
        excess = held.ended - keep
        going = [row for position, row in enumerate(oldest) if position < excess or row[0] < cutoff]
        self._database.execute_many(
            "DELETE FROM instances WHERE terminal = 1 AND ended_at = ? AND instance_id = ?", going
        )
        held.ended -= len(going)
        return len(going)

    def _drop_decisions(self, held: _Held, now: float, limit: int) -> int:
        keeps = self.retention
        cutoff = now - keeps.max_age_s
        full = held.decisions > keeps.max_decisions or held.decision_bytes > keeps.max_decision_bytes
        if not full and not _older(self._database.execute(_DECISIONS, (1,)), cutoff):
            return 0
        going = []
        for at, version, size in self._database.execute(_DECISIONS, (limit,)):
            too_many = held.decisions > keeps.max_decisions
            too_big = held.decision_bytes > keeps.max_decision_bytes and held.decisions > 1
            if at >= cutoff and not too_many and not too_big:
                break
            going.append((version,))
            held.decisions -= 1
            held.decision_bytes -= size
        self._database.execute_many("DELETE FROM decisions WHERE version = ?", going)
        return len(going)


def _older(oldest: list[Row], cutoff: float) -> bool:
    return bool(oldest) and bool(oldest[0][0] < cutoff)
