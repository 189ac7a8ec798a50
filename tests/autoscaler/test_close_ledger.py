from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.builders import instance

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.model import StatusChange
from muster.cluster.plan import Launch, Plan
from muster.cluster.snapshot import Memory
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, TERMINAL, InstanceState
from muster.stores.ledger.history import Spend, open_history
from muster.stores.ledger.store import SqliteInstanceStore, close_ledger

_S = InstanceState
_IDS = {"cloud_id": "c-1", "node_id": "n-1", "launch_request_id": "r-1"}
LIVE = [state for state in InstanceState if state not in TERMINAL and state is not _S.UNKNOWN]


def route(state: InstanceState) -> list[InstanceState]:
    """A shortest way to a state that the table allows."""
    routes = [[first] for first in CREATABLE]
    while routes:
        way = routes.pop(0)
        if way[-1] is state:
            return way
        routes += [[*way, s] for s in InstanceState if INSTANCE_MACHINE.allows(way[-1], s) and s not in way]
    raise AssertionError(state)


def written(path: Path, *states: InstanceState, price: float = 3.6, **plan) -> None:
    """One record per state, each step a second after the one before, from second 100 on."""
    records = []
    for number, state in enumerate(states):
        steps = tuple(StatusChange(s, 100.0 + k, "") for k, s in enumerate(route(state)))
        records.append(instance(f"i-{number}", state, history=steps, price_per_hour=price, **_IDS))
    with SqliteInstanceStore(path, clock=ManualClock(100.0)) as store:
        made = Plan(tick_id="t-0", at=100.0 + len(InstanceState), writes=tuple(records), **plan)
        store.commit(store.load().version, made)


@pytest.mark.parametrize("state", LIVE)
def test_a_record_in_any_state_ends(tmp_path: Path, state: InstanceState):
    path = tmp_path / "ledger.db"
    written(path, state)
    close_ledger(path, ManualClock(1000.0), CountingIds())
    with open_history(path) as history:
        (record,) = history.find()
    assert record.state in TERMINAL
    assert record.history[-1] == StatusChange(record.state, 1000.0, "ended by muster down")


def test_what_machines_cost_until_now_is_added_up_and_does_not_grow_any_more(tmp_path: Path):
    path = tmp_path / "ledger.db"
    written(path, _S.ALLOCATED, memory=Memory(spent=2.0))
    spend = close_ledger(path, ManualClock(1100.0), CountingIds())
    assert spend == Spend(gone=3.0, live=0.0, per_hour=0.0)  # 1,000 s at $3.60 per hour
    assert close_ledger(path, ManualClock(9000.0), CountingIds(1)) == spend


def test_effects_that_were_not_carried_out_are_dropped(tmp_path: Path):
    path = tmp_path / "ledger.db"
    written(path, _S.QUEUED, actions=(Launch(request_id="r-1", shape={"cpu": 1}, instance_ids=("i-0",)),))
    close_ledger(path, ManualClock(1000.0), CountingIds())
    with SqliteInstanceStore(path, clock=ManualClock(1001.0)) as store:
        ledger = store.load()
    assert (ledger.outbox, dict(ledger.instances)) == ((), {})


def test_a_cluster_without_a_ledger_cost_nothing_that_is_known(tmp_path: Path):
    assert close_ledger(tmp_path / "none.db", ManualClock(1.0), CountingIds()) is None
