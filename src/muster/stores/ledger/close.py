"""Ends every record of a ledger when its cluster is down; called by `muster down`."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.cluster.cost import cost_of
from muster.cluster.model import Instance, StatusChange
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.stores.ledger.history import Spend
from muster.stores.ledger.store import SqliteInstanceStore

DETAILS = "ended by muster down"


def close_ledger(path: Path, clock: Clock, ids: IdSource) -> Spend | None:
    """Ends every record and returns the cluster's total cost; None when no ledger was written. Idempotent."""
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
    """Returns the plan that ends every record; pure."""
    at = max(now, ledger.newest_at)
    live = tuple(ledger.instances.values())
    spent = sum(cost_of(record, at) for record in live if record.state in ON_CLOUD)
    return Plan(
        tick_id=tick_id,
        at=at,
        writes=tuple(_ended(record, at) for record in live),
        memory=replace(ledger.memory, spent=ledger.memory.spent + spent),
    )


def _ended(record: Instance, at: float) -> Instance:
    asked = record.state is InstanceState.REQUESTED  # the machine never arrived
    state = InstanceState.ALLOCATION_FAILED if asked else InstanceState.TERMINATED
    return replace(record, state=state, history=(*record.history, StatusChange(state, at, DETAILS)))
