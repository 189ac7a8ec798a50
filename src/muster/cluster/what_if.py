"""Builds the planner's question, for the loop and for `muster plan`, and answers it for a described cluster.

Both callers use `request_of`, so that a plan made by hand and a tick ask the same question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.cluster.backoff import availabilities, is_blocked, recoverable
from muster.cluster.binpack.explain import explain
from muster.cluster.binpack.offers import offer_states
from muster.cluster.binpack.pack import pack
from muster.cluster.binpack.request import Packing, PackNode, PackRequest, TypeOffer
from muster.cluster.model import ClusterSpec, Constraint, Demand, FailureKind, Gang, NodeKind, NodeType
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


def offers_of(spec: ClusterSpec, health: Mapping[str, TypeHealth], now: float) -> tuple[TypeOffer, ...]:
    """Returns every node type as it can be bought now, with its back-off."""
    scores = availabilities(health)
    return tuple(
        TypeOffer(
            node_type=known,
            room=known.max_nodes,
            availability=scores.get(known.name, 1.0),
            recoverable=recoverable(health.get(known.name), now, spec.backoff.recovery_s),
            **_choices(known, health, now),
        )
        for known in spec.node_types
    )


def _choices(known: NodeType, health: Mapping[str, TypeHealth], now: float) -> dict[str, Any]:
    """Returns the offers of a type and its back-off: its own, or that of its offers when all have one."""
    choices = offer_states(known, health, now)
    failed = health.get(known.name)
    if failed is not None and is_blocked(failed, now):
        return {**_blocked(failed.kind, failed.blocked_until, failed.message), "choices": choices}
    if choices and all(each.blocked_kind is not None for each in choices):
        first = min(choices, key=lambda each: each.blocked_until)
        blocked = _blocked(first.blocked_kind, first.blocked_until, first.blocked_message)
        return {**blocked, "blocked_offer": first.offer.name, "choices": choices}
    return {"choices": choices}


def _blocked(kind: FailureKind | None, until: float, message: str) -> dict[str, Any]:
    return {"blocked_kind": kind, "blocked_until": until, "blocked_message": message}


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
