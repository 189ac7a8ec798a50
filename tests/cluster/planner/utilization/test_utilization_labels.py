"""Check label selectors and anti-affinity in the engine."""

from __future__ import annotations

from tests.cluster.planner.utilization.asking import ask, launched, on_nodes
from tests.support.builders import demand, node_type, pack_node, selector

from muster.cluster.model import LabelMatch, LabelOperator

PLAIN = node_type("plain", {"CPU": 1})
LABELLED = node_type("labelled", {"CPU": 1}, labels={"zone": "a"})
OTHER = node_type("other", {"CPU": 1}, labels={"zone": "b"})
IN_A = demand(selectors=(selector(zone="a"),))


def test_sd25_a_running_node_with_the_label_is_enough():
    node = pack_node("i", LABELLED)
    assert launched([PLAIN, LABELLED], [node], demands=[IN_A]) == ({}, 0)


def test_sd26_the_type_with_the_label_is_bought():
    assert launched([PLAIN, OTHER, LABELLED], [pack_node("i", PLAIN)], demands=[IN_A]) == ({"labelled": 1}, 0)


def test_sd27_the_first_selector_wins_and_the_second_is_the_fallback():
    either = demand(selectors=(selector(zone="a"), selector(zone="b")))
    assert launched([OTHER, LABELLED], demands=[either]) == ({"labelled": 1}, 0)
    assert launched([OTHER, PLAIN], demands=[either]) == ({"other": 1}, 0)


def test_sd21_no_selector_that_holds_means_no_place():
    wanted = demand({"CPU": 1}, 2, selectors=(selector(zone="x"), selector(disk="y")))
    assert launched([PLAIN, LABELLED, OTHER], demands=[wanted]) == ({}, 2)


def test_a_label_that_must_be_absent():
    wanted = demand(selectors=((LabelMatch("zone", LabelOperator.NOT_IN, ("a",)),),))
    assert launched([LABELLED, OTHER], demands=[wanted]) == ({"other": 1}, 0)


def test_requests_with_more_label_conditions_are_placed_first():
    node = pack_node("i", LABELLED)
    plain = demand({"CPU": 1, "memory": 0})
    assert on_nodes(ask([], [node], demands=[plain, IN_A])) == {0: 1}
    assert [u.item for u in ask([], [node], demands=[plain, IN_A]).unplaced] == [0]


def test_labels_that_no_request_mentions_do_not_separate_nodes():
    nodes = [pack_node(f"i-{n}", LABELLED, labels={"zone": "a", "id": str(n)}) for n in range(3)]
    assert on_nodes(ask([], nodes, demands=[demand({"CPU": 1}, 2, selectors=IN_A.selectors)])) == {0: 1, 1: 1}


def test_anti_affinity_puts_one_request_on_a_node():
    node = pack_node("i", node_type("big", {"CPU": 8}))
    assert launched([], [node], demands=[demand({"CPU": 1}, 3, avoid=("group", "x"))]) == ({}, 2)


def test_anti_affinity_compares_the_value_of_the_label():
    big = node_type("big", {"CPU": 8})
    nodes = [pack_node("has", big, labels={"group": "x"}), pack_node("differs", big, labels={"group": "y"})]
    assert on_nodes(ask([], nodes, demands=[demand({"CPU": 1}, 3, avoid=("group", "x"))])) == {1: 1}


def test_sd31_a_label_added_by_one_request_lets_a_later_one_in():
    node = pack_node("i", node_type("big", {"CPU": 8}))
    wants_label = demand({"CPU": 1}, 2, selectors=(selector(group="x"),))
    adds_label = demand({"CPU": 1}, 2, avoid=("group", "x"))
    solution = ask([], [node], demands=[wants_label, adds_label])
    assert sorted(p[2:] for p in solution.placements) == [(0, 0, "big", 2), (1, 0, "big", 1)]
    assert [u[2:] for u in solution.unplaced] == [(1, 1)]
