from __future__ import annotations

import pytest
from tests.support.builders import cluster_spec, node_type, pack_node

from muster.cluster.model import NodeKind
from muster.cluster.states import InstanceState
from muster.config.demand_file import load_nodes
from muster.errors import ConfigError

CPU = node_type("cpu", {"CPU": 8}, labels={"zone": "a"})
SPEC = cluster_spec([CPU])


def test_a_node_takes_size_and_labels_from_its_type(write):
    path = write("""\
nodes:
  - {type: cpu, id: h, head: true}
  - {type: cpu, id: w, available: {CPU: 2.5}, labels: {disk: ssd}, idle_s: 40}
  - {type: cpu, count: 2, state: coming}
""")
    assert load_nodes(path, SPEC) == (
        pack_node("h", CPU, kind=NodeKind.HEAD),
        pack_node("w", CPU, available={"CPU": 2.5}, labels={"zone": "a", "disk": "ssd"}, idle_s=40.0),
        pack_node("cpu-1", CPU, state=InstanceState.ALLOCATED),
        pack_node("cpu-2", CPU, state=InstanceState.ALLOCATED),
    )


def test_a_type_that_left_the_cluster_file_can_be_described_by_its_size(write):
    path = write("nodes:\n- {type: old, id: o, total: {CPU: 4}}\n")
    assert load_nodes(path, SPEC) == (pack_node("o", node_type("old", {"CPU": 4})),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": 'nodes' is missing; add it"),
        ("nodes:\n- {type: cpu, idle_s: -5}", ":2: nodes[0].idle_s: -5 must be at least 0 and at most"),
        ("nodes:\n- {id: x}", ":2: nodes[0]: 'type' is missing; add it"),
        ("nodes:\n- {type: cpu, state: dead}", ":2: nodes[0].state: 'dead' is not one of running, coming;"),
        (
            "nodes:\n- {type: cpx}",
            ":2: nodes[0].type: 'cpx' is not in available_node_types; did you mean 'cpu'? "
            "(a removed type needs 'total')",
        ),
        (
            "nodes:\n- type: cpu\n  available:\n    CPU: 9",
            ":4: nodes[0].available.CPU: 9 is more than the node's total; lower it or raise 'total'",
        ),
        (
            "nodes:\n- {type: cpu, available: {GPU: 1}}",
            ":2: nodes[0].available.GPU: 1 is more than the node's total; lower it or raise 'total'",
        ),
        (
            "nodes:\n- {type: cpu, id: a}\n- {type: cpu, id: a}",
            ":3: nodes[1].id: 'a' is used by another node; ids must differ",
        ),
        (
            "nodes:\n- {type: cpu, head: true}\n- {type: cpu, id: b, head: true}",
            ":3: nodes[1].head: a cluster has one head; set 'head: true' on one node only",
        ),
        (
            "nodes:\n- {type: cpu, count: 60000}\n- {type: cpu, id: b, count: 60000}",
            ":3: nodes[1].count: makes more than 100,000 nodes in all; lower it",
        ),
    ],
)
def test_a_mistake_is_named_with_line_key_and_fix(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_nodes(path, SPEC)
    assert str(caught.value).startswith(f"{path}{message}")
