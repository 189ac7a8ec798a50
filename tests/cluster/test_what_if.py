from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace
from tests.support.builders import (
    cloud_instance,
    cluster_spec,
    demand,
    gang,
    instance,
    node_report,
    node_type,
    pack_node,
    snapshot,
)

from muster.base.ids import CloudId, NodeId
from muster.cluster.model import (
    ClusterSpec,
    Constraint,
    NodeKind,
    NodeStatus,
    Objective,
    RuntimeReport,
    Timeouts,
)
from muster.cluster.plan import Drain, Subject
from muster.cluster.planner.pack import ASSUMED_HEAD, PlannedDemand, what_if
from muster.cluster.planner.request import PackNode, PackRequest
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.rules.draft import Draft
from muster.cluster.snapshot import Snapshot

HEAD = node_type("head", {"CPU": 2}, max_nodes=1)
CPU = node_type("cpu", {"CPU": 4}, max_nodes=5)
OLD = node_type("old", {"CPU": 4}, max_nodes=1)
SPEC = cluster_spec([HEAD, CPU], head_node_type="head", max_nodes=3)


def test_a_cluster_without_a_listed_head_is_planned_with_an_empty_one():
    answer = what_if(SPEC, PlannedDemand(demands=(demand({"CPU": 2}, name="a"),)))
    assert answer.head_assumed
    assert [node.key for node in answer.request.nodes] == [ASSUMED_HEAD]
    assert answer.packing.demands[0].placed == {ASSUMED_HEAD: 1}


def test_the_assumed_head_counts_against_the_maximum():
    answer = what_if(SPEC, PlannedDemand(demands=(demand({"CPU": 4}, 9, name="a"),)))
    assert answer.packing.launch == {"cpu": 2}


def test_a_listed_head_is_taken_as_it_is():
    head = pack_node("h", HEAD, kind=NodeKind.HEAD, available={"CPU": 0})
    answer = what_if(SPEC, PlannedDemand(nodes=(head,), demands=(demand({"CPU": 2}, name="a"),)))
    assert not answer.head_assumed
    assert answer.request.nodes == (head,)
    assert answer.packing.launch == {"cpu": 1}


def as_seen_by_the_loop(spec: ClusterSpec, nodes: tuple[PackNode, ...], wanted: PlannedDemand) -> Snapshot:
    """The same cluster and demand as the loop's own input."""
    reports = tuple(
        node_report(
            f"n-{node.key}",
            cloud_id=CloudId(f"c-{node.key}"),
            node_type=node.node_type,
            is_head=node.kind is NodeKind.HEAD,
            status=NodeStatus.IDLE if node.idle_s else NodeStatus.RUNNING,
            total=node.total,
            available=node.available,
            idle_s=node.idle_s,
        )
        for node in nodes
    )
    records = [
        instance(
            node.key,
            node_type=node.node_type,
            kind=node.kind,
            node_id=NodeId(f"n-{node.key}"),
            cloud_id=CloudId(f"c-{node.key}"),
        )
        for node in nodes
    ]
    machines = [cloud_instance(f"c-{node.key}", node_type=node.node_type, kind=node.kind) for node in nodes]
    runtime = RuntimeReport(
        nodes=reports, demands=wanted.demands, gangs=wanted.gangs, constraints=wanted.constraints
    )
    return snapshot(records, cloud=machines, spec=spec, runtime=runtime)


@pytest.mark.parametrize("name", PackRequest.__struct_fields__)
def test_a_plan_and_the_loop_ask_the_same_question(name):
    spec = replace(
        SPEC,
        max_nodes=7,
        objective=Objective.COST,
        conserve_gpus=False,
        check_launch_hash=True,
        idle_timeout_s=77.0,
        timeouts=Timeouts(pending_idle_s=33.0),
    )
    head = pack_node("h", HEAD, kind=NodeKind.HEAD)
    wanted = PlannedDemand(
        nodes=(head, pack_node("w", CPU, available={"CPU": 1}, idle_s=5.0)),
        demands=(demand({"CPU": 3}, 2, name="a"),),
        gangs=(gang(),),
        constraints=(Constraint(demands=(demand({"CPU": 9}, name="c"),)),),
    )
    draft = Draft(replace(as_seen_by_the_loop(spec, wanted.nodes, wanted), now=0.0))
    for rule in RULES[: [rule.__name__ for rule in RULES].index("capacity") + 1]:
        rule(draft)
    assert getattr(draft.planned.request, name) == getattr(what_if(spec, wanted).request, name)


def test_the_running_loop_decides_and_explains_the_same():
    head = pack_node("h", HEAD, kind=NodeKind.HEAD)
    idle = pack_node("w", CPU, available={"CPU": 1}, idle_s=0.0)
    lazy = pack_node("z", OLD, available={"CPU": 0}, idle_s=900.0)
    spec = replace(SPEC, node_types=(HEAD, CPU, OLD), max_nodes=5)
    wanted = PlannedDemand(
        nodes=(head, idle, lazy),
        demands=(
            demand({"CPU": 3}, 2, name="a"),
            demand({"CPU": 1}, 2, name="b"),
            demand({"X": 1}, name="c"),
        ),
    )
    answer = what_if(spec, wanted)
    acted = reconcile(as_seen_by_the_loop(spec, wanted.nodes, wanted))
    launched = Counter(
        record.node_type for record in acted.writes if record.instance_id not in {"h", "w", "z"}
    )
    assert launched == Counter(answer.packing.launch) == Counter(cpu=2)
    assert [drain.instance_id for drain in acted.actions if isinstance(drain, Drain)] == ["z"]
    assert [removal.instance_id for removal in answer.packing.removals] == ["z"]
    planned = [verdict for verdict in answer.verdicts if verdict.subject is Subject.DEMAND]
    assert [replace(v, since=None) for v in acted.verdicts if v.subject is Subject.DEMAND] == planned
    assert len(planned) >= 3
