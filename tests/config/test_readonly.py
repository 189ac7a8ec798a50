from __future__ import annotations

import pytest

from muster.base.ids import NodeId
from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, NodeReport, NodeStatus, NodeType, Objective, RuntimeReport
from muster.config.to_spec import readonly_spec

BASE = ClusterSpec(cluster_name="seen", objective=Objective.UTILIZATION, idle_timeout_s=300.0)
FOUR = Resources.of(CPU=4)


def node(node_id: str, node_type: str = "", **more: object) -> NodeReport:
    return NodeReport(node_id=NodeId(node_id), node_type=node_type, total=FOUR, **more)  # type: ignore[arg-type]


@pytest.mark.conformance("CF-6")
def test_cf_6_types_are_the_nodes_that_are_there_by_name_or_by_id():
    report = RuntimeReport(
        nodes=(
            node("h", "head", is_head=True),
            node("a", "cpu", labels={"zone": "a"}),
            node("b", "cpu"),
            node("c"),
            node("d", "gone", status=NodeStatus.DEAD),
        )
    )
    assert readonly_spec(BASE, report) == ClusterSpec(
        cluster_name="seen",
        objective=Objective.UTILIZATION,
        head_node_type="head",
        node_types=(
            NodeType(name="head", resources=FOUR, max_nodes=1),
            NodeType(name="cpu", resources=FOUR, max_nodes=2, labels={"zone": "a"}),
            NodeType(name="node_c", resources=FOUR, max_nodes=1),
        ),
        max_nodes=4,
        idle_timeout_s=None,
    )


@pytest.mark.conformance("CF-6")
def test_cf_6_a_head_without_a_type_has_one_of_its_own():
    spec = readonly_spec(BASE, RuntimeReport(nodes=(node("h", is_head=True),)))
    assert (spec.head_node_type, [t.name for t in spec.node_types]) == ("node_h", ["node_h"])


def test_cf_6_nodes_without_a_head_and_no_nodes_at_all_are_shown_as_they_are():
    spec = readonly_spec(BASE, RuntimeReport(nodes=(node("a", "cpu"),)))
    assert (spec.head_node_type, spec.max_nodes) == ("", 1)
    nothing = readonly_spec(BASE, RuntimeReport())
    assert (nothing.node_types, nothing.max_nodes, nothing.head_node_type) == ((), 0, "")
