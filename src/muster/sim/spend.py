"""Spend is accounted to the second.

Truth: a machine costs its price from creation to end. The ledger: its record's price from the committed look
that first found it to the committed look that closed the record. So the two differ by looks alone:

    created <= record begins <= first committed look that listed the machine
    record ends <= first committed look later than (the one that missed the ended machine + listing grace)
    ledger total = sum over all records ever of price * (end - begin), each counted once, over any restart

The first two bound the difference of every machine in seconds; the third is exact to a thousandth of a cent.
Begins and ends are judged by the true time of the tick that wrote them, so that a wall clock that was set
between two controllers neither hides nor feigns an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.base.ids import CloudId
from muster.cluster.model import Instance
from muster.cluster.spend import spend_so_far
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.sim.cluster.build import Scene
from muster.sim.machines import Machine

CENT_FRACTION = 1e-5


class SpendAddsUp:
    """Follows every machine through the looks that could see it."""

    def __init__(self) -> None:
        self._first_look: dict[CloudId, float] = {}
        self._missed: dict[CloudId, float] = {}  # ended machines: the first look without them
        self._look_before = 0.0  # the committed look before this one

    def __call__(self, scene: Scene) -> Iterator[str]:
        looked = scene.store.committed is not None and scene.cloud.listed is not None
        if looked:
            self._look(scene)
        for commit in scene.store.commits:
            for record in commit.plan.writes:
                machine = scene.cloud.machines.get(record.cloud_id) if record.cloud_id else None
                if machine is not None:
                    yield from self._began_in_time(scene, commit.before[record.instance_id], record, machine)
                    yield from self._ended_in_time(scene, record, machine)
        if scene.store.committed is not None:
            yield from _total(scene)
        if looked:
            self._look_before = scene.world.time

    def _look(self, scene: Scene) -> None:
        now, listed = scene.world.time, scene.cloud.listed or {}
        for cloud_id in listed:
            self._first_look.setdefault(cloud_id, now)
        for machine in scene.cloud.machines.values():
            if not machine.exists and machine.cloud_id not in listed:
                self._missed.setdefault(machine.cloud_id, now)

    def _began_in_time(
        self, scene: Scene, before: Instance | None, after: Instance, machine: Machine
    ) -> Iterator[str]:
        """A record starts to cost in the tick that first sees its machine, not sooner and not later."""
        if _begun(after) is None or (before is not None and _begun(before) is not None):
            return
        now = scene.world.time
        if now < machine.created_at:
            yield f"{machine.cloud_id}: paid for {machine.created_at - now:g} s before it was bought"
        first_look = self._first_look.get(machine.cloud_id)
        owners = sum(record.cloud_id == machine.cloud_id for record in scene.store.records.values())
        if owners == 1 and first_look is not None and now > first_look:
            yield f"{machine.cloud_id}: seen at {first_look:g} s, paid for from {now:g} s on"

    def _ended_in_time(self, scene: Scene, record: Instance, machine: Machine) -> Iterator[str]:
        missed = self._missed.get(machine.cloud_id)
        if missed is None or record.state is not InstanceState.TERMINATED:
            return
        due = missed + scene.spec.spec.timeouts.listing_grace_s
        if self._look_before > due:  # an earlier look already had to close it
            yield f"{machine.cloud_id}: closed {scene.world.time - due:g} s too late after its end"


def _total(scene: Scene) -> Iterator[str]:
    """What the ledger says was spent is the sum over all records ever, each counted once."""
    plan = scene.store.committed
    if plan is None:
        return
    said = spend_so_far(scene.store.live.values(), plan.memory, plan.at)
    due = sum(_cost(record, plan.at) for record in scene.store.records.values())
    if abs(said - due) > CENT_FRACTION:
        yield f"the ledger says ${said:.5f} were spent, its records say ${due:.5f}"


def _begun(record: Instance) -> float | None:
    return next((change.at for change in record.history if change.state in ON_CLOUD), None)


def _cost(record: Instance, now: float) -> float:
    begun = _begun(record)
    if begun is None:
        return 0.0
    end = record.history[-1].at if record.state is InstanceState.TERMINATED else now
    return (end - begun) * (record.price_per_hour or 0.0) / 3600
