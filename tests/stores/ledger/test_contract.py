"""Both ledgers pass the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contracts.ledger_contract.contract import FullStore, InstanceStoreContract

from muster.base.clock import Clock
from muster.stores.ledger.memory import MemoryInstanceStore
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore


@pytest.mark.slow
class TestSqliteInstanceStore(InstanceStoreContract):
    def open_store(self, place: Path, clock: Clock, retention: Retention) -> FullStore:
        return SqliteInstanceStore(place / "ledger.db", clock=clock, retention=retention, wait_s=0.05)


class TestMemoryInstanceStore(InstanceStoreContract):
    """Its state lives as long as the object: a restarted controller is given the same one."""

    @pytest.fixture(autouse=True)
    def _no_worlds(self) -> None:
        self.stores: dict[Path, MemoryInstanceStore] = {}

    def open_store(self, place: Path, clock: Clock, retention: Retention) -> FullStore:
        store = self.stores.setdefault(place, MemoryInstanceStore(clock=clock))
        store.retention = retention
        return store
