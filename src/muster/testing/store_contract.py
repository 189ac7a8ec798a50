"""InstanceStoreContract: the test class every ledger passes. Subclass it and say how to open one.

Example:
    class TestMyStore(InstanceStoreContract):
        def open_store(self, place, clock, retention):
            return MyStore(place / "ledger", clock=clock, retention=retention)
"""

from __future__ import annotations

from muster.testing.store_fixture import FullStore
from muster.testing.store_past import PastPromises
from muster.testing.store_writes import WritePromises

__all__ = ["FullStore", "InstanceStoreContract"]


class InstanceStoreContract(WritePromises, PastPromises):
    """What a ledger promises, with exact versions and counts."""
