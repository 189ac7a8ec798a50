"""Builds the planner's question, for the loop and for `muster plan`, and answers it for a described cluster.

Both callers use `request_of`, so that a plan made by hand and a tick ask the same question.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from muster.cluster.backoff import availabilities, is_blocked, recoverable
from muster.cluster.binpack.explain import explain
from muster.cluster.binpack.offers import NO_RISKS, offer_states, with_block_of_offers
from muster.cluster.binpack.pack import pack
from muster.cluster.binpack.request import OfferState, Packing, PackNode, PackRequest, TypeOffer
from muster.cluster.model import ClusterSpec, Constraint, Demand, Gang, NodeKind, NodeType
from muster.cluster.plan import Verdict
from muster.cluster.snapshot import TypeHealth

ASSUMED_HEAD = "head"


class PlannedDemand(Struct, frozen=True, kw_only=True):
    """A PlannedDemand is what waits for machines, and the nodes that may serve it."""

    demands: tuple[Demand, ...] = ()
    gangs: tuple[Gang, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    nodes: tuple[PackNode, ...] = ()


class WhatIfAnswer(Struct, frozen=True, kw_only=True):
    """A WhatIfAnswer is a question together with the planner's answer and its reasons."""

    spec: ClusterSpec
    request: PackRequest
    packing: Packing
    verdicts: tuple[Verdict, ...]
    head_assumed: bool


def what_if(spec: ClusterSpec, wanted: PlannedDemand) -> WhatIfAnswer:
    """Plans one tick of a cluster that is as described, with nothing backed off and nothing leaving."""
    head_assumed = not any(node.kind is NodeKind.HEAD for node in wanted.nodes)
    if head_assumed:
        wanted = replace(wanted, nodes=(*_assumed_head(spec), *wanted.nodes))
    offers = offers_of(spec, health={}, now=0.0)
    request = request_of(spec, wanted, offers, now=0.0, leaving={}, pending_idle={})
    packing = pack(request)
    return WhatIfAnswer(
        spec=spec,
        request=request,
        packing=packing,
        verdicts=explain(request, packing),
        head_assumed=head_assumed,
    )


def request_of(
    spec: ClusterSpec,
    wanted: PlannedDemand,
    offers: tuple[TypeOffer, ...],
    *,
    now: float,
    leaving: Mapping[str, int],
    pending_idle: Mapping[str, tuple[float, ...]],
) -> PackRequest:
    """Returns the planner's question. Nothing has a default, so that no caller leaves a field out."""
    return PackRequest(
        now=now,
        nodes=wanted.nodes,
        offers=offers,
        max_nodes=spec.max_nodes,
        leaving=leaving,
        constraints=wanted.constraints,
        gangs=wanted.gangs,
        demands=wanted.demands,
        objective=spec.objective,
        conserve_gpus=spec.conserve_gpus,
        check_launch_hash=spec.check_launch_hash,
        idle_timeout_s=spec.idle_timeout_s,
        pending_idle_s=spec.timeouts.pending_idle_s,
        pending_idle=pending_idle,
    )


def offers_of(
    spec: ClusterSpec,
    health: Mapping[str, TypeHealth],
    now: float,
    risks: Mapping[str, float] = NO_RISKS,
) -> tuple[TypeOffer, ...]:
    """Returns every node type as it can be bought now, with its back-off; `risks` as `pools.risks` has it."""
    scores = availabilities(health)
    found = []
    for known in spec.node_types:
        offer = _offer(known, health, scores.get(known.name, 1.0), spec.backoff.recovery_s, now)
        found.append(_with_choices(offer, offer_states(known, health, now, risks)))
    return tuple(found)


def _with_choices(offer: TypeOffer, choices: tuple[OfferState, ...]) -> TypeOffer:
    if not choices:
        return offer
    offer = replace(offer, choices=choices)
    all_fail = all(each.blocked_kind is not None for each in choices)
    return with_block_of_offers(offer) if all_fail and offer.blocked_kind is None else offer


def _offer(
    node_type: NodeType, health: Mapping[str, TypeHealth], availability: float, recovery_s: float, now: float
) -> TypeOffer:
    own = health.get(node_type.name)
    blocked = own if is_blocked(own, now) else None
    return TypeOffer(
        node_type=node_type,
        room=node_type.most_nodes,
        availability=availability,
        recoverable=recoverable(own, now, recovery_s),
        blocked_kind=blocked.kind if blocked else None,
        blocked_until=blocked.blocked_until if blocked else 0.0,
        blocked_message=blocked.message if blocked else "",
    )


def _assumed_head(spec: ClusterSpec) -> tuple[PackNode, ...]:
    """Nothing scales before the head runs, so a plan without a head assumes an empty one."""
    known = spec.node_type(spec.head_node_type)
    if known is None:
        return ()
    return (
        PackNode(
            key=ASSUMED_HEAD,
            node_type=known.name,
            total=known.resources,
            available=known.resources,
            kind=NodeKind.HEAD,
            labels=known.labels,
        ),
    )
