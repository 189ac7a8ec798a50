"""Both experiment stores pass the same contract."""

from __future__ import annotations

import pytest
from tests.contracts.trial_store_contract import TrialStoreContract
from tests.support.builders import created, started
from tests.support.memory_trial_store import MemoryTrialStore

from muster.stores.experiment.store import SqliteTrialStore


class TestSqliteTrialStore(TrialStoreContract):
    def open_store(self, place):
        return SqliteTrialStore(place, wait_s=0.05)


class TestMemoryTrialStore(TrialStoreContract):
    """Its state lives as long as the object: a restarted controller is given the same one."""

    @pytest.fixture(autouse=True)
    def _no_stores(self):
        self.stores = {}

    def open_store(self, place):
        return self.stores.setdefault(place, MemoryTrialStore(root=str(place)))

    def test_a_copy_is_what_a_crash_would_leave_and_lives_its_own_life(self, store):
        store.append([created()])
        left = store.copy()
        store.append([started()])
        left.snapshot(b"s", {})
        assert (left.load().facts, left.load().snapshot, left.appended) == ((), b"s", 1)
        assert (store.load().facts, store.load().snapshot, store.appended) == (
            (created(), started()),
            None,
            2,
        )
