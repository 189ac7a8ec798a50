"""A planning question out of files, and its answer with reasons; the same pure functions the loop calls."""

from __future__ import annotations

from msgspec import Struct

from muster.cluster.binpack.explain import explain
from muster.cluster.binpack.pack import pack
from muster.cluster.binpack.request import Offer, Packing, PackNode, PackRequest
from muster.cluster.model import ClusterSpec, NodeKind
from muster.cluster.plan import Verdict
from muster.config.demand_file import Wanted

ASSUMED_HEAD = "head"


class Answer(Struct, frozen=True, kw_only=True):
    """A question with all that the planner says to it."""

    spec: ClusterSpec
    request: PackRequest
    packing: Packing
    verdicts: tuple[Verdict, ...]
    head_assumed: bool


def what_if(spec: ClusterSpec, wanted: Wanted) -> Answer:
    """Plan one tick of a cluster that is as described, with nothing backed off."""
    head_assumed = not any(node.kind is NodeKind.HEAD for node in wanted.nodes)
    nodes = (*_assumed_head(spec), *wanted.nodes) if head_assumed else wanted.nodes
    request = PackRequest(
        now=0.0,
        nodes=nodes,
        offers=tuple(Offer(node_type=known, room=known.max_nodes) for known in spec.node_types),
        max_nodes=spec.max_nodes,
        constraints=wanted.constraints,
        gangs=wanted.gangs,
        demands=wanted.demands,
        objective=spec.objective,
        conserve_gpus=spec.conserve_gpus,
        idle_timeout_s=spec.idle_timeout_s,
    )
    packing = pack(request)
    return Answer(
        spec=spec,
        request=request,
        packing=packing,
        verdicts=explain(request, packing),
        head_assumed=head_assumed,
    )


def _assumed_head(spec: ClusterSpec) -> tuple[PackNode, ...]:
    """Nothing scales before the head runs, so a plan without one is about a cluster whose head is empty."""
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
