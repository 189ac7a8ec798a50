"""The ledger of the simulator: it outlives controllers, and its writes can fail."""

from __future__ import annotations

import pytest
from tests.support.builders import NOW, launch, plan, record

from muster.base.clock import ManualClock
from muster.errors import StoreError
from muster.stores.ledger.memory import MemoryInstanceStore


class Script:
    """Fails the named moments, each once; remembers every moment."""

    def __init__(self, *failing):
        self.failing = list(failing)
        self.seen = []

    def before_write(self, operation):
        self._pass(f"before {operation}")

    def after_write(self, operation):
        self._pass(f"after {operation}")

    def _pass(self, moment):
        self.seen.append(moment)
        if moment in self.failing:
            self.failing.remove(moment)
            raise StoreError(f"failed {moment}")


def test_every_write_has_two_moments_and_reads_have_none():
    faults = Script()
    store = MemoryInstanceStore(clock=ManualClock(NOW), faults=faults)
    store.commit(0, plan(actions=[launch("e-1")]))
    store.load()
    store.commit(1, plan())  # nothing to write
    store.handed_over(["e-1"])
    store.handed_over(["e-1"])  # nothing to write
    store.raise_version(9)
    store.raise_version(3)  # nothing to write
    operations = ("commit", "handed_over", "raise_version")
    assert faults.seen == [f"{moment} {name}" for name in operations for moment in ("before", "after")]


@pytest.mark.parametrize(
    ("moment", "version", "effects"),
    [("before commit", 0, 0), ("after commit", 1, 1)],
)
def test_im_2_a_failed_commit_is_absent_or_whole(moment, version, effects):
    store = MemoryInstanceStore(clock=ManualClock(NOW), faults=Script(moment))
    with pytest.raises(StoreError, match=f"failed {moment}"):
        store.commit(0, plan(record("a"), actions=[launch("e-1")]))
    ledger = store.load()
    assert (ledger.version, len(ledger.instances), len(ledger.outbox)) == (version, version, effects)


@pytest.mark.parametrize(("moment", "effects"), [("before handed_over", 1), ("after handed_over", 0)])
def test_a_failed_mark_is_absent_or_there(moment, effects):
    store = MemoryInstanceStore(clock=ManualClock(NOW), faults=Script(moment))
    store.commit(0, plan(actions=[launch("e-1")]))
    with pytest.raises(StoreError):
        store.handed_over(["e-1"])
    assert len(store.load().outbox) == effects


def test_without_a_clock_it_is_as_late_as_the_newest_write():
    store = MemoryInstanceStore()
    store.commit(0, plan(record("a"), at=NOW))
    assert store.load().newest_at == NOW
