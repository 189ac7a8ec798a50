"""Provide a ledger, a place to reopen it and a clock to move, for the tests of InstanceStoreContract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.support.builders import NOW

from muster.base.clock import Clock, ManualClock
from muster.cluster.model import Instance
from muster.cluster.ports import InstanceStore
from muster.cluster.snapshot import Quarantined
from muster.cluster.states import InstanceState
from muster.stores.ledger.history import Decision, Spend
from muster.stores.ledger.state import DEFAULT_RETENTION, Retention


class History(Protocol):
    """History answers the questions about the past that every ledger answers."""

    def find(
        self, ids: Iterable[str] | None = None, states: Iterable[InstanceState] | None = None
    ) -> tuple[Instance, ...]: ...

    def decisions(self, limit: int = 20, tick_id: str | None = None) -> tuple[Decision, ...]: ...

    def spend(self, now: float) -> Spend: ...


class FullStore(InstanceStore, Protocol):
    """The port, and what every ledger of ours offers besides."""

    @property
    def history(self) -> History: ...

    def prune(self, now: float) -> int: ...

    def damaged(self) -> tuple[Quarantined, ...]: ...

    def close(self) -> None: ...


class StoreFixture:
    """Gives tests a fresh ledger; subclasses define how to open one."""

    def open_store(self, place: Path, clock: Clock, retention: Retention) -> FullStore:
        """Open the ledger in `place`; called again after `close`, it finds what was there."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(NOW)

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def store(self, place: Path, clock: ManualClock) -> Iterator[FullStore]:
        opened = self.open_store(place, clock, DEFAULT_RETENTION)
        yield opened
        opened.close()

    def reopened(self, store: FullStore, place: Path, clock: Clock) -> FullStore:
        """Return what the next process finds."""
        store.close()
        return self.open_store(place, clock, DEFAULT_RETENTION)
