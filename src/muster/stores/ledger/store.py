"""Store a ledger as a file: compare-and-swap by version, one transaction per decision.

The controller uses the store as `cluster.ports.InstanceStore`. The store is the only writer of its file, so
the live records stay in memory between ticks; a write by another process is noticed and the file is read
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from muster.base import codec
from muster.base.clock import Clock
from muster.base.ids import IdSource, InstanceId, RequestId
from muster.cluster.cost import cost_of
from muster.cluster.model import Instance, StatusChange
from muster.cluster.plan import Action, Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import Memory, Quarantined
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState
from muster.errors import VersionConflict
from muster.stores.ledger.history import Pruner, Spend, SqliteHistory
from muster.stores.ledger.schema import LEDGER_SCHEMA, stored
from muster.stores.ledger.state import (
    DEFAULT_RETENTION,
    LedgerState,
    Loader,
    Retention,
    checked_writes,
    ended_at,
    raised_version,
    set_aside,
)
from muster.stores.sqlite import Closing, Database, Row


@dataclass(frozen=True)
class Batch:
    """The rows of one commit, and the state of the ledger after it."""

    after: LedgerState
    ended: int
    instances: list[Row]
    effects: list[Row]
    decision: Row
    memory: str | None  # None: unchanged

    @property
    def decision_bytes(self) -> int:
        return int(self.decision[3])

    def write(self, database: Database) -> None:
        """Write everything, inside the transaction of the caller."""
        database.execute_many("REPLACE INTO instances VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", self.instances)
        database.execute_many(
            "REPLACE INTO outbox (request_id, version, action) VALUES (?, ?, ?)", self.effects
        )
        database.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", self.decision)
        if self.memory is not None:
            database.execute("REPLACE INTO memory VALUES (1, ?)", (self.memory,))
        database.execute(
            "UPDATE ledger SET version = ?, newest_at = ?", (self.after.version, self.after.newest_at)
        )


def encoded_batch(state: LedgerState, plan: Plan, records: Sequence[Instance]) -> Batch:
    """Return rows for these checked records and the rest of the plan; StoreError for unreadable ones."""
    version = state.version + 1
    texts = [stored(record, Instance, f"record {record.instance_id}") for record in records]
    effects = [stored(action, Action, f"effect {action.request_id}") for action in plan.actions]
    memory = stored(plan.memory, Memory, "memory") if plan.memory != state.memory else None
    kept = replace(
        plan,
        actions=tuple(action for _, action in effects),
        memory=memory[1] if memory is not None else state.memory,
    )
    moved = {record.instance_id: record.state.name for record in plan.writes}
    columns = (moved, plan.actions, plan.quarantined, plan.verdicts)
    parts = [codec.encode_plain(column).decode() for column in columns]
    return Batch(
        after=state.after(kept, [record for _, record in texts], version),
        ended=sum(record.state in TERMINAL for record in records),
        instances=[
            (
                int(record.state in TERMINAL),
                ended_at(record),
                record.instance_id,
                record.state.name,
                record.node_type,
                record.cloud_id,
                record.launch_request_id,
                record.version,
                text,
            )
            for text, record in texts
        ],
        effects=[(action.request_id, version, text) for text, action in effects],
        decision=(version, plan.tick_id, plan.at, sum(map(len, parts)), *parts),
        memory=memory[0] if memory is not None else None,
    )


class SqliteInstanceStore(Closing):
    """The ledger file of one cluster; use it in a `with` block or call `close`."""

    def __init__(
        self, path: str | Path, *, clock: Clock, retention: Retention = DEFAULT_RETENTION, wait_s: float = 5.0
    ) -> None:
        self._clock = clock
        self._retention = retention
        self._database = Database.open(path, LEDGER_SCHEMA, clock=clock, wait_s=wait_s)
        self._pruner = Pruner(self._database, retention)
        try:
            self._read_file()
        except BaseException:
            self._database.close()
            raise

    def retain(self, retention: Retention) -> None:
        """Keep so much of the past from the next commit on."""
        self._retention = self._pruner.retention = retention

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def history(self) -> SqliteHistory:
        """The past: ended machines, decisions, spend."""
        return SqliteHistory(self._database)

    def load(self) -> Ledger:
        return replace(self._current().ledger(self._clock.now()), damaged=self._damaged)

    def commit(self, version: int, plan: Plan) -> int:
        state = self._current()
        if version != state.version:
            raise VersionConflict(version, state.version)
        if not state.changes(plan):
            return version
        records = checked_writes(plan, version + 1, state.instances, self._has_ended)
        batch = encoded_batch(state, plan, records)
        with self._writing(version):
            batch.write(self._database)
            self._pruner.added(ended=batch.ended, decision_bytes=batch.decision_bytes)
            self._pruner.step(plan.at, limit=self._retention.step + batch.ended)
        self._state = batch.after
        return batch.after.version

    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        waiting = [request_id for request_id in request_ids if request_id in self._current().outbox]
        if not waiting:
            return
        # A mark that is lost with the power repeats an effect, which is harmless: not worth a disk flush.
        with self._database.unsynced(), self._writing():
            self._database.execute_many(
                "DELETE FROM outbox WHERE request_id = ?", [(each,) for each in waiting]
            )
        self._state = self._state.without_effects(waiting)

    def raise_version(self, at_least: int) -> int:
        state = self._current()
        version = raised_version(state.version, at_least)
        if version != state.version:
            with self._writing(state.version):
                self._database.execute("UPDATE ledger SET version = ?", (version,))
            self._state = replace(state, version=version)
        return version

    def prune(self, now: float) -> int:
        """Drop everything that retention does not keep, in small transactions; return how many rows.

        The version does not change: nothing that a tick sees has changed.
        """
        return self._pruner.all(now)

    def damaged(self) -> tuple[Quarantined, ...]:
        """Return what could not be read from this file, ever; also kept in the table `damaged`."""
        rows = self._database.execute("SELECT source, message FROM damaged ORDER BY position")
        return tuple(Quarantined(source=source, message=message) for source, message in rows)

    def integrity(self) -> str:
        """SQLite's full check of the file; "ok" when nothing is wrong."""
        return self._database.integrity()

    def close(self) -> None:
        self._database.close()

    def _current(self) -> LedgerState:
        """Return what the file holds; read again only when another process has written to it."""
        if self._seen != self._database.data_version():
            self._read_file()
        return self._state

    def _read_file(self) -> None:
        now, seen = self._clock.now(), self._database.data_version()
        loader = Loader(self._database)
        self._state = loader.state(now)
        if loader.damage:
            set_aside(self._database, loader.damage, now)
        self._damaged = self.damaged()
        self._seen: int | None = seen
        self._pruner.recount()

    @contextlib.contextmanager
    def _writing(self, expected: int | None = None) -> Iterator[None]:
        """Open one transaction. If it fails, the file is read again: its content is then not known.

        With an expected version: a conflict when another process wrote since the file was last read.
        """
        try:
            with self._database.transaction():
                if expected is not None and self._seen != self._database.data_version():
                    raise VersionConflict(
                        expected, int(self._database.execute("SELECT version FROM ledger")[0][0])
                    )
                yield
        except BaseException:
            self._seen = None
            self._pruner.recount()
            raise

    def _has_ended(self, instance_id: InstanceId) -> bool:
        sql = "SELECT 1 FROM instances WHERE instance_id = ?"
        return bool(self._database.execute(sql, (instance_id,)))


def close_ledger(path: Path, clock: Clock, ids: IdSource) -> Spend | None:
    """End every record and return the cluster's total cost; None when no ledger was written. Idempotent."""
    if not path.is_file():
        return None
    with SqliteInstanceStore(path, clock=clock) as store:
        ledger = store.load()
        # No process is left that could carry the effects out.
        store.handed_over([action.request_id for action in ledger.outbox])
        if ledger.instances:
            store.commit(ledger.version, closing(ledger, ids.fresh("t"), clock.now()))
        return store.history.spend(clock.now())


def closing(ledger: Ledger, tick_id: str, now: float) -> Plan:
    """Return the plan that ends every record; pure."""
    at = max(now, ledger.newest_at)
    live = ledger.instances.values()
    writes = []
    for record in live:
        has_arrived = record.state is not InstanceState.REQUESTED
        state = InstanceState.TERMINATED if has_arrived else InstanceState.ALLOCATION_FAILED
        change = StatusChange(state, at, "ended by muster down")
        writes.append(replace(record, state=state, history=(*record.history, change)))
    spent = sum(cost_of(record, at) for record in live if record.state in ON_CLOUD)
    memory = replace(ledger.memory, spent=ledger.memory.spent + spent)
    return Plan(tick_id=tick_id, at=at, writes=tuple(writes), memory=memory)
