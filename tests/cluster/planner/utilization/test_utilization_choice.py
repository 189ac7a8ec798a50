"""Check what is launched for plain demands."""

from __future__ import annotations

import pytest
from tests.cluster.planner.utilization.asking import ask, launched, on_nodes
from tests.support.builders import demand, node_type, offer, pack_node, pack_nodes

from muster.cluster.states import InstanceState

CPU1 = node_type("cpu", {"CPU": 1})
IMPLICIT = "node:__internal_implicit_resource_abc"

AWS = (
    node_type("m4.large", {"CPU": 2}, max_nodes=10),
    node_type("m4.4xlarge", {"CPU": 16}, max_nodes=8),
    node_type("m4.16xlarge", {"CPU": 64}, max_nodes=4),
    node_type("p2.xlarge", {"CPU": 16, "GPU": 1}, max_nodes=10),
    node_type("p2.8xlarge", {"CPU": 32, "GPU": 8}, max_nodes=4),
)
CPU_GPU = (node_type("cpu", {"CPU": 1}, max_nodes=10), node_type("gpu", {"CPU": 100, "GPU": 1}, max_nodes=10))


@pytest.mark.parametrize("count", [1, 3])
def test_sd06_each_request_that_finds_no_room_buys_a_node(count):
    assert launched([CPU1], demands=[demand({"CPU": 1}, count)]) == ({"cpu": count}, 0)


def test_sd06_a_free_node_is_used_before_one_is_bought():
    assert launched([CPU1], [pack_node("i", CPU1)], demands=[demand()]) == ({}, 0)


def test_sd06_a_node_with_too_little_left_is_not_enough():
    assert launched([CPU1], [pack_node("i", CPU1, available={"CPU": 0.9})], demands=[demand()]) == (
        {"cpu": 1},
        0,
    )


def test_sd06_a_node_on_its_way_counts_as_free():
    pending = pack_node("i", CPU1, state=InstanceState.ALLOCATED)
    assert launched([CPU1], [pending], demands=[demand()]) == ({}, 0)


def test_sd07_an_implicit_resource_is_on_every_node():
    assert launched([CPU1], demands=[demand({IMPLICIT: 1})]) == ({"cpu": 1}, 0)
    assert launched([CPU1], [pack_node("i", CPU1)], demands=[demand({IMPLICIT: 1})]) == ({}, 0)


@pytest.mark.parametrize(("shares", "nodes"), [([0.5, 0.5], 1), ([1, 0.5], 2)])
def test_sd19_an_implicit_resource_is_one_and_can_be_shared(shares, nodes):
    assert launched([CPU1], demands=[demand({IMPLICIT: share}) for share in shares]) == ({"cpu": nodes}, 0)


def test_sd08_the_cluster_limit_bounds_what_is_bought():
    busy = pack_node("i", CPU1, available={"CPU": 0})
    assert launched([CPU1], [busy], room=1, demands=[demand({"CPU": 1}, 3)]) == ({"cpu": 1}, 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_sd09_each_kind_of_demand_gets_the_type_that_suits_it(order):
    types = [node_type("type_1", {"CPU": 1, "GPU": 1}), node_type("type_2", {"CPU": 3})]
    wanted = [demand({"CPU": 1}, 3), demand({"CPU": 1, "GPU": 1})]
    assert launched(types, demands=[wanted[i] for i in order]) == ({"type_1": 1, "type_2": 1}, 0)


def test_sd09_room_in_pieces_does_not_hold_a_whole_request():
    nodes = pack_nodes(2, CPU1, available=pack_node("i", CPU1, available={"CPU": 0.5}).available)
    assert launched([], nodes, demands=[demand({"CPU": 1})]) == ({}, 1)


def test_sd10_the_smallest_type_that_does_is_preferred_to_large_and_gpu_types():
    types = [
        node_type("large", {"CPU": 32}),
        node_type("gpu", {"CPU": 1, "GPU": 2}),
        node_type("small", {"CPU": 1}),
    ]
    assert launched(types, demands=[demand({"CPU": 1})]) == ({"small": 1}, 0)


@pytest.mark.parametrize(("conserve", "used"), [(True, {1: 2}), (False, {0: 2})])
def test_sd11_gpu_nodes_are_left_alone_unless_configured_otherwise(conserve, used):
    gpu, cpu = node_type("gpu", {"CPU": 2, "GPU": 1}), node_type("cpu", {"CPU": 4})
    nodes = [pack_node("fuller", gpu, available={"CPU": 2, "GPU": 0}), pack_node("emptier", cpu)]
    assert on_nodes(ask([], nodes, demands=[demand({"CPU": 1}, 2)], conserve_gpus=conserve)) == used


@pytest.mark.parametrize(
    ("wanted", "launch", "missing"),
    [
        ([({"GPU": 8}, 1)], {"p2.8xlarge": 1}, 0),
        ([({"GPU": 1}, 6)], {"p2.8xlarge": 1}, 0),
        ([({"GPU": 1}, 4)], {"p2.xlarge": 4}, 0),
        ([({"CPU": 32, "GPU": 1}, 3)], {"p2.8xlarge": 3}, 0),
        ([({"CPU": 64, "GPU": 1}, 3)], {}, 3),
        ([({"CPU": 64}, 3)], {"m4.16xlarge": 3}, 0),
        ([({"CPU": 64}, 1), ({"CPU": 1}, 1)], {"m4.16xlarge": 1, "m4.large": 1}, 0),
        ([({"CPU": 64}, 1), ({"CPU": 9}, 2)], {"m4.16xlarge": 1, "m4.4xlarge": 2}, 0),
        ([({"CPU": 16}, 5)], {"m4.16xlarge": 1, "m4.4xlarge": 1}, 0),
        ([({"CPU": 8}, 10)], {"m4.16xlarge": 1, "m4.4xlarge": 1}, 0),
        ([({"CPU": 1}, 100)], {"m4.16xlarge": 1, "m4.4xlarge": 2, "m4.large": 2}, 0),
        ([({"GPU": 1}, 1), ({"CPU": 1}, 64)], {"m4.16xlarge": 1, "p2.xlarge": 1}, 0),
        ([({"GPU": 1}, 8), ({"CPU": 1}, 64)], {"m4.4xlarge": 2, "p2.8xlarge": 1}, 0),
    ],
)
def test_sd22_the_packing_heuristic(wanted, launch, missing):
    assert launched(AWS, demands=[demand(shape, count) for shape, count in wanted]) == (launch, missing)


def test_sd22_spread_requests_take_one_small_node_each():
    spread = demand({"GPU": 1}, 8, avoid=("spread", ""))
    assert launched(AWS, demands=[spread]) == ({"p2.xlarge": 8}, 0)


@pytest.mark.parametrize(
    ("wanted", "room", "launch", "missing"),
    [
        ([({"CPU": 1}, 100)], 10, {"cpu": 10}, 90),
        ([({"CPU": 1}, 100)], 11, {"cpu": 10, "gpu": 1}, 0),
        ([({"CPU": 1}, 100), ({"GPU": 1}, 1)], 100, {"gpu": 1}, 0),
        ([({"GPU": 1}, 4), ({"CPU": 1}, 404)], 100, {"gpu": 4, "cpu": 4}, 0),
    ],
)
def test_sd22_gpu_nodes_take_plain_work_only_with_gpu_work_or_at_the_end(wanted, room, launch, missing):
    demands = [demand(shape, count) for shape, count in wanted]
    assert launched(CPU_GPU, room=room, demands=demands) == (launch, missing)


@pytest.mark.parametrize(
    ("count", "existing", "room", "launch", "missing"),
    [
        (40, 0, 2, {"m4.large": 2}, 36),
        (10, 10, None, {}, 0),
        (10, 0, None, {"m4.large": 5}, 0),
        (40, 0, None, {"m4.large": 10}, 20),
    ],
)
def test_sd22_limits_of_type_and_cluster(count, existing, room, launch, missing):
    large = AWS[0]
    nodes = pack_nodes(existing, large)
    offers = [offer(large, room=10 - existing)]
    assert launched(offers, nodes, room=room, demands=[demand({"CPU": 1}, count)]) == (launch, missing)


@pytest.mark.parametrize(("shape", "launch", "missing"), [("CPU", {"m4": 5}, 0), ("GPU", {}, 1)])
def test_sd22_nodes_of_the_minimum_are_filled_first(shape, launch, missing):
    m2, m4 = node_type("m2", {"CPU": 1}), node_type("m4", {"CPU": 2})
    gpu, gpubla = node_type("gpu", {"GPU": 2}), node_type("gpubla", {"GPU": 1})
    minimum = [*pack_nodes(5, m2), *pack_nodes(2, gpu)]
    queued = [pack_node("", n.node_type, total=n.total, state=InstanceState.QUEUED) for n in minimum]
    offers = [offer(m2, room=5), offer(m4), offer(gpu, room=0), offer(gpubla, room=0)]
    wanted = demand({"CPU": 2}, 5) if shape == "CPU" else demand({"GPU": 1}, 5)
    assert launched(offers, queued, demands=[wanted]) == (launch, missing)


@pytest.mark.parametrize(("count", "launch", "missing"), [(1, 0, 0), (2, 0, 0), (4, 2, 0), (8, 2, 4)])
def test_sd23_demand_beyond_the_minimum_buys_up_to_the_maximum(count, launch, missing):
    p2 = node_type("p2.8xlarge", {"CPU": 32, "GPU": 8})
    minimum = pack_nodes(2, p2, state=InstanceState.QUEUED)
    offers = [offer(p2, room=2), offer(node_type("p2.xlarge", {"CPU": 16, "GPU": 1}))]
    expected = {"p2.8xlarge": launch} if launch else {}
    assert launched(offers, minimum, demands=[demand({"GPU": 8}, count)]) == (expected, missing)


@pytest.mark.parametrize(
    ("eights", "existing", "launch", "missing"),
    [
        (3, 1, {"p2.8xlarge": 2, "p2.xlarge": 1}, 0),
        (3, 2, {"p2.8xlarge": 1, "p2.xlarge": 1}, 0),
        (3, 3, {"p2.xlarge": 1}, 0),
        (5, 3, {"p2.8xlarge": 1, "p2.xlarge": 1}, 1),
    ],
)
def test_sd23_large_and_small_gpu_requests_beside_existing_nodes(eights, existing, launch, missing):
    p2 = node_type("p2.8xlarge", {"CPU": 32, "GPU": 8})
    offers = [offer(p2, room=4 - existing), offer(node_type("p2.xlarge", {"CPU": 16, "GPU": 1}))]
    demands = [demand({"GPU": 8}, eights), demand({"GPU": 1})]
    assert launched(offers, pack_nodes(existing, p2), demands=demands) == (launch, missing)


@pytest.mark.parametrize(("room", "missing"), [(1, 3), (2, 2), (4, 0)])
def test_sd23_the_cluster_limit_leaves_the_rest_unplaced(room, missing):
    small = node_type("p2.xlarge", {"CPU": 16, "GPU": 1})
    assert launched([small], room=room, demands=[demand({"GPU": 1}, 4)]) == ({"p2.xlarge": room}, missing)


def test_no_room_at_all_buys_nothing():
    assert launched([CPU1], room=0, demands=[demand({"CPU": 1}, 2)]) == ({}, 2)


def test_fractions_add_up_exactly():
    assert launched([node_type("cpu", {"CPU": 4})], demands=[demand({"CPU": 0.1}, 40)]) == ({"cpu": 1}, 0)


def test_exactly_tied_types_alternate_in_config_order():
    types = [node_type("a", {"CPU": 2}), node_type("b", {"CPU": 2}), node_type("c", {"CPU": 2})]
    assert launched(types, demands=[demand({"CPU": 2}, 4)]) == ({"a": 2, "b": 1, "c": 1}, 0)
    assert launched(types, demands=[demand({"CPU": 2}, 8)]) == ({"a": 3, "b": 3, "c": 2}, 0)


def test_sd29_of_equal_types_the_most_available_wins_and_the_default_is_one():
    first, second = node_type("first", {"CPU": 1}), node_type("second", {"CPU": 1})
    low = offer(first, availability=0.1)
    assert launched([low, offer(second, availability=0.2)], demands=[demand()]) == ({"second": 1}, 0)
    assert launched([low, second], demands=[demand()]) == ({"second": 1}, 0)


def test_sd29_utilization_beats_availability():
    tight, wide = node_type("tight", {"CPU": 1}), node_type("wide", {"CPU": 2})
    offers = [offer(wide, availability=1.0), offer(tight, availability=0.1)]
    assert launched(offers, demands=[demand()]) == ({"tight": 1}, 0)


def test_ps2_priority_breaks_ties():
    types = [node_type("plain", {"CPU": 1}), node_type("preferred", {"CPU": 1}, priority=1)]
    assert launched(types, demands=[demand()]) == ({"preferred": 1}, 0)


def test_ps2_priority_beats_availability():
    preferred = node_type("preferred", {"CPU": 1}, priority=1)
    offers = [offer(node_type("plain", {"CPU": 1})), offer(preferred, availability=0.1)]
    assert launched(offers, demands=[demand()]) == ({"preferred": 1}, 0)


def test_ps4_recovering_availability_beats_priority():
    preferred = node_type("preferred", {"CPU": 1}, priority=9)
    offers = [offer(preferred, recoverable=0.5), offer(node_type("plain", {"CPU": 1}))]
    assert launched(offers, demands=[demand()]) == ({"plain": 1}, 0)


def test_ps7_utilization_beats_priority():
    types = [node_type("wide", {"CPU": 2}, priority=9), node_type("tight", {"CPU": 1})]
    assert launched(types, demands=[demand()]) == ({"tight": 1}, 0)
