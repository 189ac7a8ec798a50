"""Tick: what one round of the loop saw and decided, complete; all that the monitor tells is made from it."""

from __future__ import annotations

from dataclasses import dataclass

from muster.autoscaler.recording_ports import Sightings
from muster.cluster.model import ClusterSpec, RuntimeReport
from muster.cluster.plan import Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import ProviderTraits
from muster.cluster.status import StatusSnapshot, status_of

LEDGER_UNUSABLE = "ledger"  # the source of the note that a plan without a ledger carries


@dataclass(frozen=True)
class Tick:
    """One round. `ledger` is how the plan left it."""

    plan: Plan
    ledger: Ledger
    spec: ClusterSpec
    traits: ProviderTraits
    runtime: RuntimeReport | None  # None: it could not be read this time
    config_problem: str = ""
    config_stamp: object = None  # of the config's file: another one means that somebody wrote it
    took_s: float = 0.0
    interval_s: float = 0.0  # until the next one
    launch_errors: int = 0
    terminate_errors: int = 0
    drain_errors: int = 0

    @classmethod
    def of(cls, plan: Plan, ledger: Ledger, seen: Sightings, took_s: float) -> Tick:
        return cls(
            plan=plan,
            ledger=ledger,
            spec=seen.spec,
            traits=seen.traits,
            runtime=seen.runtime,
            config_problem=seen.config_problem,
            took_s=took_s,
            launch_errors=seen.launch_errors,
            terminate_errors=seen.terminate_errors,
            drain_errors=seen.drain_errors,
        )

    @property
    def decided(self) -> bool:
        """False: the ledger could not be used, so nothing was decided or done."""
        return all(note.source != LEDGER_UNUSABLE for note in self.plan.quarantined)

    def status(self) -> StatusSnapshot:
        return status_of(self.ledger.instances.values(), self.ledger.memory, self.plan)
