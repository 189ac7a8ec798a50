"""Summarises the ledger and the newest plan for `muster status` and `muster why`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from muster.cluster.model import Instance
from muster.cluster.plan import Plan, Verdict
from muster.cluster.snapshot import Memory, Quarantined
from muster.cluster.spend import price_per_hour, spend_so_far

__all__ = ["StatusSnapshot", "spend_so_far", "status_of"]


class StatusSnapshot(Struct, frozen=True, kw_only=True):
    """A StatusSnapshot is one moment of a cluster."""

    at: float
    instances: Mapping[str, Mapping[str, int]]  # node type -> state name -> count
    price_per_hour: float
    spent: float
    verdicts: tuple[Verdict, ...]
    quarantined: tuple[Quarantined, ...]


def status_of(instances: Iterable[Instance], memory: Memory, plan: Plan) -> StatusSnapshot:
    """Returns the summary of these instances and this plan."""
    live = tuple(instances)
    counts: dict[str, dict[str, int]] = {}
    for instance in live:
        states = counts.setdefault(instance.node_type, {})
        states[instance.state.name] = states.get(instance.state.name, 0) + 1
    return StatusSnapshot(
        at=plan.at,
        instances=counts,
        price_per_hour=price_per_hour(live),
        spent=spend_so_far(live, memory, plan.at),
        verdicts=plan.verdicts,
        quarantined=plan.quarantined,
    )
