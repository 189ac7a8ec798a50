"""A plan as rows, built before the transaction starts: what cannot be stored is refused without a write.

`SqliteInstanceStore.commit` is the only caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from muster.cluster.model import Instance
from muster.cluster.plan import Action, Plan
from muster.cluster.snapshot import Memory
from muster.cluster.states import TERMINAL
from muster.stores.ledger.state import LedgerState, ended_at
from muster.stores.sqlite import Database, Row
from muster.stores.text import plain, stored


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
        """Everything, inside the caller's transaction."""
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
    """Rows for these checked records and the rest of the plan; StoreError for what could not be read back."""
    version = state.version + 1
    texts = [stored(record, Instance, f"record {record.instance_id}") for record in records]
    effects = [stored(action, Action, f"effect {action.request_id}") for action in plan.actions]
    memory = stored(plan.memory, Memory, "memory") if plan.memory != state.memory else None
    kept = replace(
        plan,
        actions=tuple(action for _, action in effects),
        memory=memory[1] if memory is not None else state.memory,
    )
    return Batch(
        after=state.after(kept, [record for _, record in texts], version),
        ended=sum(record.state in TERMINAL for record in records),
        instances=[_instance_row(record, text) for text, record in texts],
        effects=[(action.request_id, version, text) for text, action in effects],
        decision=_decision_row(version, plan),
        memory=memory[0] if memory is not None else None,
    )


def _instance_row(record: Instance, text: str) -> Row:
    return (
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


def _decision_row(version: int, plan: Plan) -> Row:
    parts = (
        plain({record.instance_id: record.state.name for record in plan.writes}),
        plain(plan.actions),
        plain(plan.quarantined),
        plain(plan.verdicts),
    )
    return (version, plan.tick_id, plan.at, sum(len(part) for part in parts), *parts)
