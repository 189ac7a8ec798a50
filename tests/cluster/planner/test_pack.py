"""Check the whole pass, mostly with the utilization engine: exact launches and exact leftovers."""

from __future__ import annotations

import pytest
from tests.support.builders import (
    NOW,
    amounts,
    demand,
    gang,
    node_type,
    offer,
    pack_node,
    pack_nodes,
    pack_request,
    selector,
)

from muster.base.resources import Resources
from muster.cluster.model import Constraint, FailureKind, NodeKind, Objective, Strategy
from muster.cluster.planner.pack import choose_objective, pack
from muster.cluster.planner.request import DemandKind, ItemOutcome, PackSolution, Placement, Unplaced
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

STRICT_PACK, STRICT_SPREAD = Strategy.STRICT_PACK, Strategy.STRICT_SPREAD


def refuse(problem):
    raise AssertionError("the engine must not be asked")


def unplaced(outcomes):
    return [outcome.unplaced for outcome in outcomes]


def test_when_nothing_is_asked_the_engine_is_not_called():
    a = node_type("a", min_nodes=1)
    nothing = (demand(count=0),)
    request = pack_request(
        [a], demands=nothing, constraints=(Constraint(demands=nothing),), gangs=(gang(()),)
    )
    packing = pack(request, refuse)
    assert packing.launch == {"a": 1}
    assert packing.demands == packing.gangs == packing.constraints == (ItemOutcome(index=0),)


def test_outcomes_keep_the_index_of_their_demand_when_empty_ones_are_left_out():
    demands = (demand(count=0), demand(count=2), demand({"GPU": 1}), demand(count=0))
    packing = pack(pack_request([node_type("a")], demands=demands))
    assert packing.demands == (
        ItemOutcome(index=0),
        ItemOutcome(index=1, launched={"a": 2}),
        ItemOutcome(index=2, unplaced=1),
        ItemOutcome(index=3),
    )


def test_outcomes_separate_running_nodes_from_those_on_their_way_and_those_being_bought():
    a = node_type("a", min_nodes=3)
    nodes = (pack_node("i-1", a), pack_node("i-2", a, state=InstanceState.REQUESTED))
    packing = pack(pack_request([a], nodes=nodes, max_nodes=4, demands=(demand(count=7),)))
    assert packing.launch == {"a": 2}  # one for the minimum, one more for the demand
    assert packing.demands == (
        ItemOutcome(index=0, placed={"i-1": 1}, coming={"i-2": 1}, launched={"a": 2}, unplaced=3),
    )
    assert packing.needed == {"i-1", "i-2"}


def test_placements_of_the_three_kinds_are_counted_apart_and_repeats_are_added():
    a = node_type("a", {"CPU": 8})
    solution = PackSolution(
        launch={"a": 1, "b": 0},
        placements=(
            Placement(DemandKind.DEMAND, False, 0, 0, "a", 2),
            Placement(DemandKind.DEMAND, False, 0, 0, "a", 3),
            Placement(DemandKind.DEMAND, True, 0, -1, "a", 2),
            Placement(DemandKind.CONSTRAINT, False, 0, 1, "a", 4),
        ),
        unplaced=(
            Unplaced(DemandKind.DEMAND, False, 0, 1),
            Unplaced(DemandKind.CONSTRAINT, False, 0, 1),
            Unplaced(DemandKind.CONSTRAINT, False, 0, 1),
        ),
        resize={1: amounts({"CPU": 9})},
    )
    request = pack_request(
        [a],
        nodes=pack_nodes(2, a),
        demands=(demand(count=6),),
        gangs=(gang(),),
        constraints=(Constraint(demands=(demand(count=6),)),),
    )
    met = PackSolution(launch={}, placements=(), unplaced=())  # the constraint alone
    packing = pack(request, lambda problem: solution if problem.demands else met)
    assert packing.launch == {"a": 1}
    assert packing.demands == (ItemOutcome(index=0, placed={"i-1": 5}, unplaced=1),)
    assert packing.gangs == (ItemOutcome(index=0, launched={"a": 2}),)
    assert packing.constraints == (ItemOutcome(index=0, placed={"i-2": 4}, unplaced=2),)
    assert packing.resize == {"i-2": amounts({"CPU": 9})}
    assert packing.needed == {"i-1", "i-2"}


def test_the_engine_is_asked_with_the_room_that_minimums_left():
    seen = []

    def engine(problem):
        seen.append((problem.room, [offer.room for offer in problem.offers], len(problem.nodes)))
        return PackSolution(launch={}, placements=(), unplaced=(Unplaced(DemandKind.DEMAND, False, 0, 1),))

    types = [node_type("a", min_nodes=2), node_type("b", max_nodes=4)]
    pack(pack_request(types, nodes=pack_nodes(1, "b"), max_nodes=8, demands=(demand(),)), engine)
    assert seen == [(5, [8, 3], 3)]


def test_sd_08_the_cluster_maximum_bounds_launches():
    a = node_type("a")
    nodes = (pack_node("i-1", a, available={"CPU": 0}),)
    packing = pack(pack_request([a], nodes=nodes, max_nodes=2, demands=(demand(count=3),)))
    assert packing.launch == {"a": 1}
    assert unplaced(packing.demands) == [2]


def test_sd_12_a_constraint_met_by_a_minimum_buys_nothing_more():
    a = node_type("a", min_nodes=1)
    packing = pack(pack_request([a], constraints=(Constraint(demands=(demand(),)),)))
    assert packing.launch == {"a": 1}
    assert packing.constraints == (ItemOutcome(index=0, launched={"a": 1}),)


def test_sd_12_a_constraint_buys_what_is_missing():
    a = node_type("a", min_nodes=1)
    packing = pack(pack_request([a], constraints=(Constraint(demands=(demand(count=3),)),)))
    assert packing.launch == {"a": 3}


def test_sd_12_an_impossible_constraint_buys_nothing_and_is_reported():
    a = node_type("a")
    packing = pack(pack_request([a], constraints=(Constraint(demands=(demand({"GPU": 1}, 2),)),)))
    assert packing.launch == {}
    assert unplaced(packing.constraints) == [2]


def test_a_constraint_is_held_against_totals_and_demand_against_what_is_free():
    a = node_type("a", {"CPU": 4})
    nodes = (pack_node("i-1", a, available={"CPU": 0}),)
    bound = pack(pack_request([a], nodes=nodes, constraints=(Constraint(demands=(demand(count=4),)),)))
    asked = pack(pack_request([a], nodes=nodes, demands=(demand(count=4),)))
    assert (bound.launch, asked.launch) == ({}, {"a": 1})


def test_sd_17_strict_pack_shares_a_node_and_strict_spread_does_not():
    a = node_type("a", {"CPU": 2})
    assert pack(pack_request([a], gangs=(gang(strategy=STRICT_PACK),))).launch == {"a": 1}
    assert pack(pack_request([a], gangs=(gang(strategy=STRICT_SPREAD),))).launch == {"a": 2}


def test_sd_17_a_gang_too_big_to_share_a_node_launches_nothing():
    a = node_type("a", {"CPU": 3})
    packing = pack(pack_request([a], gangs=(gang([{"CPU": 3}] * 2, STRICT_PACK),)))
    assert packing.launch == {}
    assert unplaced(packing.gangs) == [2]


def test_sd_18_minimums_constraint_gangs_and_tasks_together():
    """By hand: 10 CPUs in all need one more t1 beside 4 + 4 + 1. The spread needs four nodes with 2 free: two
    exist, so one more t1 is launched. The 3 x 1 pack finds only nodes with 2 free: a third t1. The 2 x 3 pack
    never fits. What is left free (2 + 2 + 2 + 1) is exactly the seven tasks.
    """
    t1, t2 = node_type("t1", {"CPU": 4}), node_type("t2", {"CPU": 1, "GPU": 1}, min_nodes=1)
    nodes = (
        pack_node("i-1", t1, available={"CPU": 2}),
        pack_node("i-2", t1, state=InstanceState.ALLOCATED),
    )
    request = pack_request(
        [t1, t2],
        nodes=nodes,
        constraints=(Constraint(demands=(demand(count=10),)),),
        gangs=(
            gang([{"CPU": 2}] * 4, STRICT_SPREAD, "spread"),
            gang([{"CPU": 3}] * 2, STRICT_PACK, "too-big"),
            gang([{"CPU": 1}] * 3, STRICT_PACK, "pack"),
        ),
        demands=(demand(count=7),),
    )
    packing = pack(request)
    assert packing.launch == {"t2": 1, "t1": 3}
    assert unplaced(packing.constraints) == [0]
    assert unplaced(packing.gangs) == [0, 2, 0]
    assert unplaced(packing.demands) == [0]


EC2 = (
    node_type("m4.large", {"CPU": 2}, max_nodes=10),
    node_type("m4.4xlarge", {"CPU": 16}, max_nodes=8),
    node_type("m4.16xlarge", {"CPU": 64}, max_nodes=4),
    node_type("p2.xlarge", {"CPU": 16, "GPU": 1}, max_nodes=10),
    node_type("p2.8xlarge", {"CPU": 32, "GPU": 8}, max_nodes=4),
)


@pytest.mark.parametrize(
    ("demands", "launch"),
    [
        ([({"GPU": 8}, 1)], {"p2.8xlarge": 1}),
        ([({"GPU": 1}, 6)], {"p2.8xlarge": 1}),
        ([({"GPU": 1}, 4)], {"p2.xlarge": 4}),
        ([({"CPU": 32, "GPU": 1}, 3)], {"p2.8xlarge": 3}),
        ([({"CPU": 64, "GPU": 1}, 3)], {}),
        ([({"CPU": 64}, 3)], {"m4.16xlarge": 3}),
        ([({"CPU": 64}, 1), ({"CPU": 1}, 1)], {"m4.16xlarge": 1, "m4.large": 1}),
        ([({"CPU": 64}, 1), ({"CPU": 9}, 2)], {"m4.16xlarge": 1, "m4.4xlarge": 2}),
        ([({"CPU": 16}, 5)], {"m4.16xlarge": 1, "m4.4xlarge": 1}),
        ([({"CPU": 8}, 10)], {"m4.16xlarge": 1, "m4.4xlarge": 1}),
        ([({"CPU": 1}, 100)], {"m4.16xlarge": 1, "m4.4xlarge": 2, "m4.large": 2}),
        ([({"GPU": 1}, 1), ({"CPU": 1}, 64)], {"m4.16xlarge": 1, "p2.xlarge": 1}),
        ([({"GPU": 1}, 8), ({"CPU": 1}, 64)], {"m4.4xlarge": 2, "p2.8xlarge": 1}),
    ],
)
def test_sd_22_the_packing_heuristic(demands, launch):
    request = pack_request(EC2, demands=tuple(demand(shape, count) for shape, count in demands))
    packing = pack(request)
    assert packing.launch == launch
    assert sum(unplaced(packing.demands)) == (0 if launch else 3)


def test_sd_22_eight_gpus_spread_need_eight_machines():
    packing = pack(pack_request(EC2, gangs=(gang([{"GPU": 1}] * 8, STRICT_SPREAD),)))
    assert packing.launch == {"p2.xlarge": 8}


@pytest.mark.parametrize(
    ("demands", "maximum", "launch"),
    [
        ([({"CPU": 1}, 100)], 10, {"cpu": 10}),
        ([({"CPU": 1}, 100)], 11, {"cpu": 10, "gpu": 1}),
        ([({"CPU": 1}, 100), ({"GPU": 1}, 1)], 100, {"gpu": 1}),
        ([({"GPU": 1}, 4), ({"CPU": 1}, 404)], 100, {"gpu": 4, "cpu": 4}),
    ],
)
def test_sd_22_gpu_machines_are_conserved(demands, maximum, launch):
    types = (node_type("cpu", {"CPU": 1}), node_type("gpu", {"CPU": 100, "GPU": 1}))
    asked = tuple(demand(shape, count) for shape, count in demands)
    assert pack(pack_request(types, max_nodes=maximum, demands=asked)).launch == launch


@pytest.mark.parametrize(
    ("count", "maximum", "existing", "launch"),
    [
        (10, 2, 0, {"m4.large": 2}),
        (10, None, 10, {}),
        (10, None, 0, {"m4.large": 5}),
        (40, None, 0, {"m4.large": 10}),
    ],
)
def test_sd_22_one_type(count, maximum, existing, launch):
    large = EC2[0]
    busy = pack_nodes(existing, large, available=amounts({"CPU": 0}))
    request = pack_request([large], nodes=busy, max_nodes=maximum, demands=(demand(count=count),))
    assert pack(request).launch == launch


@pytest.mark.parametrize(
    ("shape", "launch", "left"),
    [({"CPU": 2}, {"m2": 5, "gpu": 2, "m4": 5}, 0), ({"GPU": 1}, {"m2": 5, "gpu": 2}, 1)],
)
def test_sd_22_minimums_and_maximums(shape, launch, left):
    types = (
        node_type("m2", {"CPU": 1}, min_nodes=5),
        node_type("m4", {"CPU": 2}),
        node_type("gpu", {"GPU": 2}, min_nodes=2, max_nodes=2),
        node_type("gpubla", {"GPU": 1}, max_nodes=0),
    )
    packing = pack(pack_request(types, demands=(demand(shape, 5),)))
    assert packing.launch == launch
    assert unplaced(packing.demands) == [left]


P2 = (
    node_type("p2.8xlarge", {"CPU": 32, "GPU": 8}, min_nodes=2, max_nodes=4),
    node_type("p2.xlarge", {"CPU": 16, "GPU": 1}, max_nodes=10),
)


@pytest.mark.parametrize(("count", "launched", "left"), [(1, 2, 0), (2, 2, 0), (4, 4, 0), (8, 4, 4)])
def test_sd_23_minimums_first_then_demand_up_to_the_maximum(count, launched, left):
    packing = pack(pack_request(P2, demands=(demand({"GPU": 8}, count),)))
    assert packing.launch == {"p2.8xlarge": launched}
    assert unplaced(packing.demands) == [left]


@pytest.mark.parametrize(
    ("count", "existing", "launch", "left"),
    [
        (3, 1, {"p2.8xlarge": 2, "p2.xlarge": 1}, 0),
        (3, 2, {"p2.8xlarge": 1, "p2.xlarge": 1}, 0),
        (3, 3, {"p2.xlarge": 1}, 0),
        (5, 3, {"p2.8xlarge": 1, "p2.xlarge": 1}, 1),
    ],
)
def test_sd_23_existing_machines_are_used_first(count, existing, launch, left):
    demands = (demand({"GPU": 8}, count), demand({"GPU": 1}))
    packing = pack(pack_request(P2, nodes=pack_nodes(existing, P2[0]), demands=demands))
    assert packing.launch == launch
    assert unplaced(packing.demands) == [left, 0]


@pytest.mark.parametrize(("maximum", "launched", "left"), [(1, 1, 3), (2, 2, 2), (4, 4, 0)])
def test_sd_23_the_cluster_maximum_leaves_the_rest(maximum, launched, left):
    packing = pack(pack_request(P2[1:], max_nodes=maximum, demands=(demand({"GPU": 1}, 4),)))
    assert packing.launch == {"p2.xlarge": launched}
    assert unplaced(packing.demands) == [left]


@pytest.mark.parametrize(
    ("gangs", "launch", "left"),
    [
        ([gang([{"CPU": 2}] * 3, Strategy.PACK)], {"a": 2}, [0]),
        ([gang([{"CPU": 2}] * 3, Strategy.SPREAD)], {"a": 2}, [0]),
        ([gang([{"CPU": 2}] * 3, STRICT_SPREAD)], {"a": 3}, [0]),
        ([gang([{"CPU": 2}] * 2, STRICT_PACK)], {"a": 1}, [0]),
        ([gang([{"CPU": 1}] * 2, STRICT_SPREAD), gang([{"CPU": 3}], STRICT_PACK, "g-2")], {"a": 2}, [0, 0]),
        # Five nodes at most: the spread over four leaves one for the pack; the second spread finds no sixth.
        (
            [gang([{"CPU": 4}] * 4, STRICT_SPREAD), gang([{"CPU": 4}], STRICT_PACK, "g-2"),
             gang([{"CPU": 4}] * 2, STRICT_SPREAD, "g-3")],
            {"a": 5},
            [0, 0, 2],
        ),
    ],
)  # fmt: skip
def test_sd_24_combinations_of_gangs(gangs, launch, left):
    packing = pack(pack_request([node_type("a", {"CPU": 4}, max_nodes=5)], gangs=tuple(gangs)))
    assert packing.launch == launch
    assert unplaced(packing.gangs) == left


def test_w8_a_draining_node_is_only_a_number_so_it_cannot_be_removed_twice():
    a = node_type("a", max_nodes=1)
    packing = pack(pack_request([a], nodes=pack_nodes(1, a), leaving={"a": 3}, max_nodes=1))
    assert packing.removals == ()
    assert (packing.offers[0].room, packing.room) == (0, 0)


def test_w30_the_second_alternative_of_a_gang_is_tried():
    here, there = (selector(zone="here"),), (selector(zone="there"),)
    a = node_type("a", labels={"zone": "there"})
    options = ((demand(count=2, selectors=here),), (demand(count=2, selectors=there),))
    packing = pack(pack_request([a], gangs=(gang(options=options),)))
    assert packing.launch == {"a": 2}
    assert unplaced(packing.gangs) == [0]


def test_w30_several_constraints_hold_together():
    a, b = node_type("a"), node_type("b", {"GPU": 1})
    constraints = (
        Constraint(demands=(demand(count=2), demand({"GPU": 1}))),
        Constraint(demands=(demand(count=1),)),
    )
    packing = pack(pack_request([a, b], constraints=constraints))
    assert packing.launch == {"a": 3, "b": 1}
    assert packing.constraints == (
        ItemOutcome(index=0, launched={"a": 2}),
        ItemOutcome(index=1, launched={"b": 1}),
        ItemOutcome(index=2, launched={"a": 1}),
    )


def test_w31_one_impossible_bundle_does_not_cancel_the_others():
    a = node_type("a")
    constraint = Constraint(demands=(demand(count=2), demand({"GPU": 1}, 3)))
    packing = pack(pack_request([a], constraints=(constraint,)))
    assert packing.launch == {"a": 2}
    assert unplaced(packing.constraints) == [0, 3]


@pytest.mark.parametrize("price", [None, 1.0])
def test_sd_12_a_constraint_beyond_the_limits_launches_nothing_and_keeps_no_idle_node(price):
    a = node_type("a", max_nodes=3, price_per_hour=price)
    nodes = (pack_node("i-1", a, idle_s=90.0),)
    constraint = Constraint(demands=(demand(count=4),))
    packing = pack(pack_request([a], nodes=nodes, constraints=(constraint,), idle_timeout_s=30.0))
    assert (packing.launch, [each.instance_id for each in packing.removals]) == ({}, ["i-1"])
    assert unplaced(packing.constraints) == [4]


def test_a_constraint_that_only_a_back_off_delays_is_met_as_far_as_it_goes():
    a, b = node_type("a", max_nodes=2), node_type("b", max_nodes=2)
    offers = [offer(a), offer(b, blocked_kind=FailureKind.CAPACITY, blocked_until=NOW + 5)]
    packing = pack(pack_request(offers, constraints=(Constraint(demands=(demand(count=4),)),)))
    assert (packing.launch, unplaced(packing.constraints)) == ({"a": 2}, [2])


def test_a_constraint_that_fits_is_met_beside_one_that_does_not():
    a = node_type("a", max_nodes=3)
    constraints = (Constraint(demands=(demand(count=9),)), Constraint(demands=(demand(count=2),)))
    packing = pack(pack_request([a], constraints=constraints))
    assert (packing.launch, unplaced(packing.constraints)) == ({"a": 2}, [9, 0])


def test_a_machine_that_can_grow_is_resized_instead_of_buying_another():
    limits = ResizeLimits(maximum=amounts({"CPU": 4}))
    a = node_type("a", {"CPU": 2}, resize=limits)
    status = ResizeStatus(current=amounts({"CPU": 2}), desired=amounts({"CPU": 2}))
    packing = pack(pack_request([a], nodes=(pack_node("i-1", a, resize=status),), demands=(demand(count=4),)))
    assert packing.launch == {}
    assert packing.resize == {"i-1": amounts({"CPU": 4})}
    assert packing.demands == (ItemOutcome(index=0, placed={"i-1": 4}),)


@pytest.mark.parametrize(
    ("prices", "chosen"),
    [
        ([1.0, 0.0], Objective.COST),
        ([1.0, None], Objective.UTILIZATION),
        ([], Objective.UTILIZATION),
    ],
)
def test_auto_means_cost_when_every_type_has_a_price(prices, chosen):
    types = [node_type(f"t{index}", price_per_hour=price) for index, price in enumerate(prices)]
    assert choose_objective(Objective.AUTO, types) is chosen


def test_a_type_that_cannot_be_bought_needs_no_price():
    types = [node_type("a", price_per_hour=1.0), node_type("b", max_nodes=0)]
    assert choose_objective(Objective.AUTO, types) is Objective.COST


@pytest.mark.parametrize("objective", [Objective.COST, Objective.UTILIZATION])
def test_an_objective_that_was_chosen_stands(objective):
    assert choose_objective(objective, [node_type("a")]) is objective
    assert choose_objective(objective, [node_type("a", price_per_hour=1.0)]) is objective


def test_auto_buys_the_cheap_machines_although_the_head_has_no_price():
    head_type = node_type("head", max_nodes=1)
    dear, cheap = node_type("dear", price_per_hour=9.0), node_type("cheap", price_per_hour=1.0)
    head = pack_node("i-head", head_type, kind=NodeKind.HEAD, available={"CPU": 0})
    request = pack_request([head_type, dear, cheap], nodes=(head,), demands=(demand(count=3),))
    assert pack(request).launch == {"dear": 2, "cheap": 1}  # exact ties alternate, prices do not matter
    by_cost = pack_request(
        [head_type, dear, cheap], nodes=(head,), demands=(demand(count=3),), objective=Objective.AUTO
    )
    assert pack(by_cost).launch == {"cheap": 3}


def test_the_price_is_that_of_all_that_is_launched():
    a, b = node_type("a", price_per_hour=1.5, min_nodes=2), node_type("b", {"GPU": 1}, price_per_hour=2.0)
    packing = pack(pack_request([a, b], demands=(demand({"GPU": 1}, 3),)))
    assert (packing.launch, packing.price_per_hour) == ({"a": 2, "b": 3}, 9.0)
    assert pack(pack_request([a, b], nodes=pack_nodes(2, a))).price_per_hour == 0.0


def test_a_launched_type_without_a_price_makes_the_price_unknown():
    types = [node_type("a", price_per_hour=1.5, min_nodes=1), node_type("b", min_nodes=1)]
    assert pack(pack_request(types)).price_per_hour is None


@pytest.mark.parametrize(("is_conserved", "launch"), [(True, {"cpu": 1}), (False, {"gpu": 1})])
def test_gpu_machines_are_conserved_unless_configured_otherwise(is_conserved, launch):
    types = [node_type("cpu", {"CPU": 4, "disk": 1}), node_type("gpu", {"CPU": 1, "GPU": 1})]
    asked = (demand({"CPU": 1}),)
    assert pack(pack_request(types, demands=asked, conserve_gpus=is_conserved)).launch == launch


def test_resources_reach_the_engine_as_they_are():
    """Implicit resources count as one on nodes that do not list them."""
    shape = Resources.of({"node:__internal_implicit_resource_x": 1})
    assert pack(pack_request([node_type("a")], demands=(demand(shape, 2),))).launch == {"a": 2}
