"""Spend is accounted to the second.

Truth: a machine costs its price from creation to end. The ledger: its record's price from the committed look
that first found it to the committed look that closed the record. So the two differ by looks alone:

    created <= record begins <= first committed look that listed the machine
    record ends <= first committed look later than (the one that missed the ended machine + listing grace)
    ledger total = sum over all records ever of price * (end - begin), each counted once, over any restart

The first two bound the difference of every machine in seconds; the third is exact to a thousandth of a cent.
Ledger times are translated to true time by the tick that wrote them, so that a wall clock that was set
between two controllers does not hide an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.base.ids import CloudId
from muster.cluster.model import Instance
from muster.cluster.spend import spend_so_far
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.sim.machines import Machine
from muster.sim.scene import Scene

CENT_FRACTION = 1e-5


class SpendAddsUp:
    """Follows every machine through the looks that could see it."""

    def __init__(self) -> None:
        self._true_time: dict[float, float] = {}  # ledger time of a commit -> true time
        self._first_look: dict[CloudId, float] = {}
        self._missed: dict[CloudId, float] = {}  # ended machines: the first look without them
        self._look_before = 0.0  # the committed look before this one

    def __call__(self, scene: Scene) -> Iterator[str]:
        now = scene.world.time
        for commit in scene.store.commits:
            self._true_time.setdefault(commit.plan.at, now)
        if scene.store.committed is not None and scene.cloud.listed is not None:
            self._look(scene, now)
        for commit in scene.store.commits:
            for record in commit.plan.writes:
                yield from self._in_time(scene, record)
        if scene.store.committed is not None:
            yield from _total(scene)
        if scene.store.committed is not None and scene.cloud.listed is not None:
            self._look_before = now

    def _look(self, scene: Scene, now: float) -> None:
        listed = scene.cloud.listed or {}
        for cloud_id in listed:
            self._first_look.setdefault(cloud_id, now)
        for machine in scene.cloud.machines.values():
            if not machine.exists and machine.cloud_id not in listed:
                self._missed.setdefault(machine.cloud_id, now)

    def _in_time(self, scene: Scene, record: Instance) -> Iterator[str]:
        machine = scene.cloud.machines.get(record.cloud_id) if record.cloud_id else None
        if machine is None:
            return
        begun = next((c.at for c in record.history if c.state in ON_CLOUD), None)
        if begun is None:
            return
        begun_true = self._true_time.get(begun, machine.created_at)
        if begun_true < machine.created_at:
            yield f"{machine.cloud_id}: paid for {machine.created_at - begun_true:g} s before it was bought"
        yield from self._began_in_time(scene, machine, begun_true)
        if record.state is InstanceState.TERMINATED:
            yield from self._ended_in_time(scene, machine, self._true_time[record.since])

    def _began_in_time(self, scene: Scene, machine: Machine, begun: float) -> Iterator[str]:
        others = [r for r in scene.store.records.values() if r.cloud_id == machine.cloud_id]
        first_look = self._first_look.get(machine.cloud_id)
        if len(others) == 1 and first_look is not None and begun > first_look:
            yield f"{machine.cloud_id}: seen at {first_look:g} s, paid for from {begun:g} s on"

    def _ended_in_time(self, scene: Scene, machine: Machine, ended: float) -> Iterator[str]:
        missed = self._missed.get(machine.cloud_id)
        if missed is None:
            return  # given up while it still existed or was listed: the look rules are checked elsewhere
        due = missed + scene.spec.spec.timeouts.listing_grace_s
        if self._look_before > due:  # an earlier look already had to close it
            yield f"{machine.cloud_id}: closed {ended - due:g} s too late after its end"


def _total(scene: Scene) -> Iterator[str]:
    """What the ledger says was spent is the sum over all records ever, each counted once."""
    plan = scene.store.committed
    if plan is None:
        return
    said = spend_so_far(scene.store.live.values(), plan.memory, plan.at)
    due = sum(_cost(record, plan.at) for record in scene.store.records.values())
    if abs(said - due) > CENT_FRACTION:
        yield f"the ledger says ${said:.5f} were spent, its records say ${due:.5f}"


def _cost(record: Instance, now: float) -> float:
    begun = next((change.at for change in record.history if change.state in ON_CLOUD), None)
    if begun is None:
        return 0.0
    end = record.history[-1].at if record.state is InstanceState.TERMINATED else now
    return (end - begun) * (record.price_per_hour or 0.0) / 3600
