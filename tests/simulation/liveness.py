"""Check liveness: once the faults have stopped, the cluster comes to rest in a sensible state.

`unsettled(cluster)` yields what still changes. At rest every demand is met or truthfully explained,
every machine has its record and its node, nothing is in a passing state, minimums are reached, nothing is
over a limit, and no unneeded node is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from tests.simulation.cluster import FaultyCluster

from muster.base.resources import Resources
from muster.cluster.model import NodeKind, NodeType, Selector, Strategy
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.planner.demand_classes import capacity
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.sim.cluster.tasks import GangWork, matches

_S = InstanceState
IDLE_SLACK_S = 60.0


def unsettled(cluster: FaultyCluster) -> Iterator[str]:
    """Yield what is not in its final state; nothing when the cluster is at rest."""
    if cluster.plan is None:
        yield "the controller is not running"
        return
    yield from _unexplained_demand(cluster)
    yield from _passing_states(cluster)
    yield from _strays(cluster)
    yield from _limits(cluster)
    yield from _idlers(cluster)


def _unexplained_demand(cluster: FaultyCluster) -> Iterator[str]:
    verdicts: dict[tuple[Subject, str], list[Verdict]] = {}
    for verdict in cluster.plan.verdicts if cluster.plan else ():
        verdicts.setdefault((verdict.subject, verdict.subject_id), []).append(verdict)
    for like, queue in cluster.runtime.pending.items():
        if queue:
            given = verdicts.get((Subject.DEMAND, like.name), [])
            fitting = _holders(cluster, like.shape, like.selectors)
            yield from _untrue(cluster, f"{like.name} ({len(queue)} pending)", given, fitting)
    for gang in cluster.runtime.pending_gangs():
        given = verdicts.get((Subject.GANG, gang.gang_id), [])
        fitting = _holders(cluster, _largest_need(gang), ())
        for text in _untrue(cluster, f"gang {gang.gang_id}", given, fitting):
            # Spread bundles may be impossible together although each would fit: not judged here.
            together = any(v.reason in (Reason.INFEASIBLE, Reason.BLOCKED_BY_GANG) for v in given)
            if not together or gang.strategy is Strategy.STRICT_PACK:
                yield text


def _largest_need(gang: GangWork) -> Resources:
    """Return what one node must hold: a bundle, or all of them for STRICT_PACK."""
    shape = gang.tasks[0].like.shape
    return shape.times(len(gang.tasks)) if gang.strategy is Strategy.STRICT_PACK else shape


def _untrue(
    cluster: FaultyCluster, name: str, given: Sequence[Verdict], fitting: Sequence[NodeType]
) -> Iterator[str]:
    """Yield pending demand whose explanation is missing, temporary or wrong."""
    if not given:
        yield f"{name}: no explanation"
    for verdict in given:
        if not _holds(cluster, verdict.reason, fitting):
            yield f"{name}: {verdict.reason.value} {verdict.detail}".rstrip()


def _holds(cluster: FaultyCluster, reason: Reason, fitting: Sequence[NodeType]) -> bool:
    have = Counter(machine.node_type for machine in cluster.cloud.alive())
    limit = cluster.spec.spec.max_nodes
    if reason is Reason.INFEASIBLE:
        return not fitting
    if reason is Reason.BLOCKED_BY_TYPE_LIMIT:
        return all(have[t.name] >= t.most_nodes or _is_sold_out(cluster, t) for t in fitting)
    if reason is Reason.BLOCKED_BY_CLUSTER_LIMIT:
        return limit is not None and sum(have.values()) >= limit
    if reason in (Reason.BLOCKED_BY_BUDGET, Reason.WAITING_FOR_TURN):
        return cluster.spec.spec.budget is not None
    return False  # placed, on its way or backed off: none of that may last


def _is_sold_out(cluster: FaultyCluster, known: NodeType) -> bool:
    """Return whether every offer of the type is at its maximum, as the ledger counts."""
    held = Counter(i.offer_name for i in cluster.store.live.values() if i.node_type == known.name)
    most = ((held[offer.name], offer.max_nodes) for offer in known.offers)
    return bool(known.offers) and all(limit is not None and count >= limit for count, limit in most)


def _holders(cluster: FaultyCluster, shape: Resources, selectors: Sequence[Selector]) -> list[NodeType]:
    """Return the types that could hold one such request; the head's type cannot be launched again."""
    may_grow = cluster.cloud.traits().resizable
    types = [t if may_grow else replace(t, resize=None) for t in cluster.spec.spec.node_types[1:]]
    fitting = [t for t in types if capacity(t).holds(shape)]
    return [t for t in fitting if not selectors or any(matches(s, t.labels) for s in selectors)]


def _passing_states(cluster: FaultyCluster) -> Iterator[str]:
    for instance in cluster.store.live.values():
        if instance.state is not _S.RAY_RUNNING:
            name = f"{instance.instance_id} ({instance.node_type})"
            yield f"{name} is {instance.state.name}: {instance.details}"


def _strays(cluster: FaultyCluster) -> Iterator[str]:
    """Machine, record and node belong together, one of each."""
    owned = Counter(i.cloud_id for i in cluster.store.live.values() if i.state in ON_CLOUD)
    for machine in cluster.cloud.alive():
        if owned.pop(machine.cloud_id, 0) != 1:
            yield f"{machine.cloud_id} is not owned by exactly one record"
        node = cluster.runtime.node_on(machine)
        if node is None or not node.serves:
            yield f"{machine.cloud_id} ({machine.node_type}) has no working node"
    for cloud_id in owned:
        yield f"{cloud_id} has a record and does not exist"


def _limits(cluster: FaultyCluster) -> Iterator[str]:
    spec = cluster.spec.spec
    have = Counter(machine.node_type for machine in cluster.cloud.alive())
    known = {t.name: t for t in spec.node_types}
    # A type that left the config keeps its machines as long as they are busy.
    busy = Counter(node.machine.node_type for node in cluster.runtime.live_nodes() if node.running)
    for name, count in have.items():
        most = known[name].max_nodes if name in known else busy[name]
        if count > most:
            yield f"{count} machines of {name}, its maximum is {most}"
    total = sum(have.values())
    full = spec.max_nodes is not None and total >= spec.max_nodes
    if spec.max_nodes is not None and sum(have[name] for name in known) > spec.max_nodes:
        yield f"{total} machines, the cluster's maximum is {spec.max_nodes}"
    for t in spec.node_types:
        least = min(t.min_nodes, t.most_nodes)
        is_free = not full and spec.budget is None  # a budget comes before a minimum
        if have[t.name] < least and is_free and not _is_sold_out(cluster, t):
            yield f"{have[t.name]} machines of {t.name}, its minimum is {least}"


def _idlers(cluster: FaultyCluster) -> Iterator[str]:
    """A node that is idle for long stays for a minimum, a standing request or pending work, or leaves."""
    spec, now = cluster.spec.spec, cluster.world.time
    if spec.idle_timeout_s is None:
        return
    have = Counter(machine.node_type for machine in cluster.cloud.alive())
    wanted = bool(
        cluster.runtime.constraints or cluster.runtime.pending_tasks() or cluster.runtime.pending_gangs()
    )
    for node in cluster.runtime.live_nodes():
        known = spec.node_type(node.machine.node_type)
        if node.machine.kind is NodeKind.HEAD or node.running or known is None:
            continue
        spare = have[known.name] > known.min_nodes and not cluster.cloud.is_tied(node.machine)
        if spare and not wanted and now - node.idle_since > spec.idle_timeout_s + IDLE_SLACK_S:
            name = f"{node.machine.cloud_id} ({known.name})"
            yield f"{name} is idle for {now - node.idle_since:.0f} s and stays"
