from __future__ import annotations

from muster.cli.what_if import ASSUMED_HEAD, what_if
from muster.cluster.model import NodeKind
from muster.config.demand import Wanted
from muster.testing.builders import cluster_spec, demand, node_type, pack_node

HEAD = node_type("head", {"CPU": 2}, max_nodes=1)
CPU = node_type("cpu", {"CPU": 4}, max_nodes=5)
SPEC = cluster_spec([HEAD, CPU], head_node_type="head", max_nodes=3)


def test_a_cluster_without_a_listed_head_is_planned_with_an_empty_one():
    answer = what_if(SPEC, Wanted(demands=(demand({"CPU": 2}, name="a"),)))
    assert answer.head_assumed
    assert [node.key for node in answer.request.nodes] == [ASSUMED_HEAD]
    assert answer.packing.demands[0].placed == {ASSUMED_HEAD: 1}


def test_the_assumed_head_counts_against_the_maximum():
    answer = what_if(SPEC, Wanted(demands=(demand({"CPU": 4}, 9, name="a"),)))
    assert answer.packing.launch == {"cpu": 2}


def test_a_listed_head_is_taken_as_it_is():
    head = pack_node("h", HEAD, kind=NodeKind.HEAD, available={"CPU": 0})
    answer = what_if(SPEC, Wanted(nodes=(head,), demands=(demand({"CPU": 2}, name="a"),)))
    assert not answer.head_assumed
    assert answer.request.nodes == (head,)
    assert answer.packing.launch == {"cpu": 1}
