"""Pruner: forgets ended machines and old decisions, a bounded number of rows at a time.

What pruned machines cost is in `Memory.spent` since the commit that ended them; nothing to add up here.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.stores.ledger.state import Retention
from muster.stores.sqlite import Database, Row

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
    """Owned by the store that writes the file. All but `all` runs inside the store's transaction."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self.retention = retention
        self._held: _Held | None = None

    def recount(self) -> None:
        """Somebody else wrote, or a write of ours failed: count again when it next matters."""
        self._held = None

    def added(self, *, ended: int, decision_bytes: int) -> None:
        """A commit has just written one decision of this size and ended this many machines."""
        if self._held is not None:
            self._held.ended += ended
            self._held.decisions += 1
            self._held.decision_bytes += decision_bytes

    def step(self, now: float, *, limit: int) -> int:
        """Drop at most `limit` records and `limit` decisions; how many rows went."""
        held = self._held = self._held or self._count()
        return self._drop_ended(held, now, limit) + self._drop_decisions(held, now, limit)

    def all(self, now: float) -> int:
        """Drop everything that is not to be kept, in transactions of their own; how many rows went."""
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
