"""Summarise the ledger and the newest plan for `muster status` and `muster why`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from muster.cluster.backoff import is_blocked
from muster.cluster.budget import BudgetState, budget_state
from muster.cluster.cost import price_per_hour, spend_so_far
from muster.cluster.expected_work import boot_time
from muster.cluster.model import ClusterSpec, Instance, NodeType, health_key
from muster.cluster.plan import Verdict
from muster.cluster.ports import TickResult
from muster.cluster.snapshot import Memory, Quarantined
from muster.cluster.states import ON_CLOUD

__all__ = ["OfferStatus", "StatusSnapshot", "budget_of", "offer_statuses", "spend_so_far", "status_of"]


class OfferStatus(Struct, frozen=True, kw_only=True):
    """One offer of a node type: its price, its machines, and why it is not launched from."""

    node_type: str
    zone: str
    market: str
    price_per_hour: float | None
    machines: int
    max_machines: int | None  # its own limit; None: as many as the type may have
    blocked_until: float | None = None  # None: it can be launched from
    kind: str = ""  # of the newest failure, while it is backed off
    message: str = ""


class StatusSnapshot(Struct, frozen=True, kw_only=True):
    """One moment of a cluster."""

    at: float
    instances: Mapping[str, Mapping[str, int]]  # node type -> state name -> count
    price_per_hour: float
    spent: float
    verdicts: tuple[Verdict, ...]
    quarantined: tuple[Quarantined, ...]
    offers: tuple[OfferStatus, ...] = ()  # of the node types that have any
    budget: str = ""  # what is spent and reserved of it, for users; "" without one


def status_of(tick: TickResult) -> StatusSnapshot:
    """Return the summary of the cluster after a tick."""
    live, memory, plan = tick.records, tick.ledger.memory, tick.plan
    budget = budget_of(tick.spec, live, memory, plan.at)
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
        offers=tuple(offer_statuses(tick.types_with_offers, live, memory, plan.at)),
        budget="" if budget is None else budget.text(),
    )


def budget_of(
    spec: ClusterSpec, instances: Iterable[Instance], memory: Memory, now: float
) -> BudgetState | None:
    """Return what is spent and reserved of the cluster's budget; None when it has none."""
    return budget_state(spec, instances, memory, now, boot_time(memory.boot_s, spec))


def offer_statuses(
    node_types: Iterable[NodeType], live: Iterable[Instance], memory: Memory, now: float
) -> Iterator[OfferStatus]:
    """Yield every offer of these types, in the order of the config."""
    machines = Counter((i.node_type, i.offer_name) for i in live if i.state in ON_CLOUD)
    for known in node_types:
        for offer in known.offers:
            health = memory.health.get(health_key(known.name, offer.name))
            blocked = health if health is not None and is_blocked(health, now) else None
            yield OfferStatus(
                node_type=known.name,
                zone=offer.zone,
                market=offer.market,
                price_per_hour=offer.price_per_hour,
                machines=machines[known.name, offer.name],
                max_machines=offer.max_nodes,
                blocked_until=blocked.blocked_until if blocked else None,
                kind=blocked.kind.value if blocked else "",
                message=blocked.message if blocked else "",
            )
