"""Provide InstanceStoreContract, the test class every ledger passes. Subclass it, define `open_store`.

Example:
    class TestMyStore(InstanceStoreContract):
        def open_store(self, place, clock, retention):
            return MyStore(place / "ledger", clock=clock, retention=retention)
"""

from __future__ import annotations

from tests.contracts.ledger_contract.fixture import FullStore
from tests.contracts.ledger_contract.history import PastPromises
from tests.contracts.ledger_contract.writes import WritePromises

__all__ = ["FullStore", "InstanceStoreContract"]


class InstanceStoreContract(WritePromises, PastPromises):
    """Tests what a ledger promises, with exact versions and counts."""
