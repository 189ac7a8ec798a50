"""Finds node types of which no more machines are launched: a gate forbids it, or one waits in vain. Pure.

A rule plans without them, so that another type that fits serves the demand within the same tick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.cluster.model import CloudInstance, ClusterSpec, Demand, FailureKind, Instance, MachineProblem
from muster.cluster.planner.demand_classes import fitting
from muster.cluster.planner.request import TypeOffer

_KINDS = frozenset({FailureKind.QUOTA, FailureKind.CONFIG})  # another machine would wait as well


class TypeHold(NamedTuple):
    """Reason to launch no more machines of a type for now."""

    kind: FailureKind
    message: str
    is_soft: bool = False  # only where another type fits: more machines may help to get room


def held_types(
    spec: ClusterSpec, starting: Iterable[Instance], cloud: Mapping[CloudId, CloudInstance], now: float
) -> dict[str, TypeHold]:
    """Returns the holds by type; `starting` are the machines whose nodes have not come."""
    holds: dict[str, TypeHold] = {}
    for instance in starting:
        problem = problem_of(instance, cloud)
        if problem is not None and problem.kind in _KINDS:
            holds[instance.node_type] = TypeHold(problem.kind, problem.message)
        elif problem is not None and now - instance.since > spec.timeouts.other_type_s:
            holds.setdefault(instance.node_type, TypeHold(problem.kind, problem.message, is_soft=True))
    for known in spec.node_types:
        if known.gates:
            holds[known.name] = TypeHold(FailureKind.QUOTA, f"gated by {' and '.join(known.gates)}")
    return holds


def problem_of(instance: Instance, cloud: Mapping[CloudId, CloudInstance]) -> MachineProblem | None:
    machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
    return None if machine is None else machine.problem


def effective_holds(
    holds: Mapping[str, TypeHold], offers: Iterable[TypeOffer], demands: Iterable[Demand]
) -> dict[str, TypeHold]:
    """Returns the holds without soft ones, unless a type that is not held fits some of the demand."""
    free = [one for one in offers if one.node_type.name not in holds and one.blocked_kind is None]
    usable = [offer for offer in free if offer.node_type.most_nodes > 0]
    has_other = any(hold.is_soft for hold in holds.values()) and any(fitting(one, usable) for one in demands)
    return {name: hold for name, hold in holds.items() if has_other or not hold.is_soft}


def hold_offers(offers: Iterable[TypeOffer], holds: Mapping[str, TypeHold]) -> tuple[TypeOffer, ...]:
    """Returns the offers with the held types blocked for an unknown time."""
    return tuple(
        offer
        if (hold := holds.get(offer.node_type.name)) is None
        else replace(
            offer, room=0, blocked_kind=hold.kind, blocked_message=hold.message, blocked_until=math.inf
        )
        for offer in offers
    )
