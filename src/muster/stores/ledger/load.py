"""Reading a ledger file into a LedgerState; what cannot be read is set aside, the rest is used."""

from __future__ import annotations

import math
from collections.abc import Callable
import dataclasses
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import ParamSpec

from muster.base import codec
from muster.base.ids import InstanceId, RequestId
from muster.cluster.model import Instance
from muster.cluster.plan import Action
from muster.cluster.snapshot import Memory
from muster.cluster.states import TERMINAL, InstanceState
from muster.errors import LedgerCorrupt
from muster.stores.ledger.state import (
    FAILURES_SHOWN,
    FAILURES_SHOWN_FOR_S,
    LedgerState,
    failures_among,
    newest_failures,
)
from muster.stores.sqlite import Database

P = ParamSpec("P")
T = TypeVar("T")

# As bytes: one row with broken text must not make its neighbours unreadable.
_LIVE = "SELECT CAST(instance_id AS BLOB), CAST(record AS BLOB) FROM instances WHERE terminal = 0"
_FAILED = (
    "SELECT CAST(instance_id AS BLOB), CAST(record AS BLOB) FROM instances"
    " WHERE state = 'ALLOCATION_FAILED' AND ended_at >= ? ORDER BY ended_at DESC, instance_id LIMIT ?"
)
_OUTBOX = "SELECT position, CAST(request_id AS BLOB), CAST(action AS BLOB) FROM outbox ORDER BY position"


@dataclass(frozen=True)
class Damage:
    """One row that cannot be used: what it is, its bytes, how it is taken out of the way, and why."""

    source: str
    content: bytes
    removal: str
    key: object
    message: str = ""


class Loader:
    """One reading of one file; `damage` holds what was left out."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.damage: list[Damage] = []

    def state(self, now: float) -> LedgerState:
        """Everything a tick may see, from one committed state of the file."""
        with self._database.one_look():
            version, newest_at = self._head()
            horizon = max(now, newest_at) - FAILURES_SHOWN_FOR_S
            failed = self._instances(_FAILED, (horizon, FAILURES_SHOWN), terminal=True)
            return LedgerState(
                version=version,
                instances=dict(sorted(self._instances(_LIVE, (), terminal=False).items())),
                memory=self._memory(),
                outbox=self._outbox(),
                failures=newest_failures(failures_among(tuple(failed.values()))),
                newest_at=newest_at,
            )

    def _head(self) -> tuple[int, float]:
        rows = self._database.execute("SELECT version, newest_at FROM ledger")
        if len(rows) == 1:
            version, newest_at = rows[0]
            if isinstance(version, int) and version >= 0 and isinstance(newest_at, float):
                return version, newest_at if math.isfinite(newest_at) else 0.0
        raise LedgerCorrupt(
            f"{self._database.path}: its version is unreadable ({rows!r}). Nothing was changed. Restore a "
            f"backup, or repair the one row of the table `ledger` with sqlite3"
        )

    def _instances(
        self, sql: str, values: tuple[object, ...], *, terminal: bool
    ) -> dict[InstanceId, Instance]:
        found: dict[InstanceId, Instance] = {}
        removal = f"DELETE FROM instances WHERE terminal = {int(terminal)} AND CAST(instance_id AS BLOB) = ?"
        for key, content in self._database.execute(sql, values):
            name = key.decode(errors="replace")
            damage = Damage(f"record {name}", content, removal, key)
            record = self._readable(damage, _record, name, content, terminal)
            if record is not None:
                found[record.instance_id] = record
        return found

    def _memory(self) -> Memory:
        for (content,) in self._database.execute("SELECT CAST(value AS BLOB) FROM memory"):
            damage = Damage("memory", content, "DELETE FROM memory WHERE only_row = ?", 1)
            return self._readable(damage, codec.decode, content, Memory) or Memory()
        return Memory()

    def _outbox(self) -> dict[RequestId, Action]:
        waiting: dict[RequestId, Action] = {}
        for position, key, content in self._database.execute(_OUTBOX):
            name = key.decode(errors="replace")
            damage = Damage(f"effect {name}", content, "DELETE FROM outbox WHERE position = ?", position)
            action = self._readable(damage, _action, name, content)
            if action is not None:
                waiting[action.request_id] = action
        return waiting

    def _readable(self, damage: Damage, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except (ValueError, KeyError, RecursionError) as error:
            self.damage.append(dataclasses.replace(damage, message=str(error)))
            return None


def set_aside(database: Database, damage: list[Damage], now: float) -> None:
    """Move unusable rows to the table `damaged`, so that each is reported and none is lost."""
    with database.transaction():
        for each in damage:
            database.execute(
                "INSERT INTO damaged (source, message, content, found_at) VALUES (?, ?, ?, ?)",
                (each.source, each.message, each.content, now),
            )
            database.execute(each.removal, (each.key,))


def _record(name: str, content: bytes, terminal: bool) -> Instance:
    record = codec.decode(content, Instance)
    if record.instance_id != name:
        raise ValueError(f"its record says it is {record.instance_id}")
    if record.state is InstanceState.UNKNOWN or (record.state in TERMINAL) is not terminal:
        raise ValueError(
            f"its record says {record.state.name}, which does not go with terminal={int(terminal)}"
        )
    return record


def _action(name: str, content: bytes) -> Action:
    action: Action = codec.decode(content, Action)  # type: ignore[arg-type]  # a union is no class to mypy
    if action.request_id != name:
        raise ValueError(f"its content says it is {action.request_id}")
    return action
