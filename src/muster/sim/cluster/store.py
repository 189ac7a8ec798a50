"""SimStore: a real store with faults in front and an auditor behind.

The auditor keeps every record ever written, also those the store has forgotten, and every commit: checkers
read it. The store underneath is the memory store, or the SQLite one where the disk itself is under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.base.ids import InstanceId, RequestId
from muster.cluster.model import Instance
from muster.cluster.plan import Plan
from muster.cluster.ports import InstanceStore, Ledger
from muster.cluster.states import TERMINAL
from muster.errors import StoreError
from muster.sim.cluster.crash_points import Wire, step
from muster.sim.cluster.faults import Faults


@dataclass
class Commit:
    """One decision as it was written: what was there before, and what the plan put there."""

    before: dict[InstanceId, Instance | None]
    plan: Plan
    old_version: int
    new_version: int


class SimStore:
    """The InstanceStore port over an inner store."""

    def __init__(self, wire: Wire, faults: Faults, inner: InstanceStore) -> None:
        self.wire = wire
        self.records: dict[InstanceId, Instance] = {}  # the newest of every record ever
        self.live: dict[InstanceId, Instance] = {}  # those not in a terminal state
        self.commits: list[Commit] = []  # since the checkers last looked
        self.committed: Plan | None = None  # what this tick wrote down, if it did
        self.newest: Plan | None = None  # the last one written down, by any controller
        self.version = 0
        self.inner = inner
        self._faults = faults

    @step("store.load")
    def load(self) -> Ledger:
        if self._faults.hit("store_read_fails"):
            raise StoreError("simulated: the ledger cannot be read")
        return self.inner.load()

    @step("store.commit")
    def commit(self, version: int, plan: Plan) -> int:
        if self._faults.hit("store_write_fails"):
            raise StoreError("simulated: no space left on device")
        written = self.inner.commit(version, plan)
        before = {record.instance_id: self.records.get(record.instance_id) for record in plan.writes}
        self._note(plan)
        self.commits.append(Commit(before, plan, version, written))
        self.committed = self.newest = plan
        self.version = written
        if self._faults.hit("store_write_unclear"):
            raise StoreError("simulated: written, but the disk did not say so")
        return written

    @step("store.handed_over")
    def handed_over(self, request_ids: Sequence[RequestId]) -> None:
        if self._faults.hit("store_write_fails"):
            raise StoreError("simulated: no space left on device")
        self.inner.handed_over(request_ids)

    @step("store.raise_version")
    def raise_version(self, at_least: int) -> int:
        return self.inner.raise_version(at_least)

    def _note(self, plan: Plan) -> None:
        for record in plan.writes:
            self.records[record.instance_id] = record
            if record.state in TERMINAL:
                self.live.pop(record.instance_id, None)
            else:
                self.live[record.instance_id] = record

    def peek(self) -> Ledger:
        """What the ledger holds, for checkers and people: no step, no fault."""
        return self.inner.load()
