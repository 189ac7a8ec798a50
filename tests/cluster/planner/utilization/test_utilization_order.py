"""Check both kinds of demand, list order and the cost of equal things."""

from __future__ import annotations

import pytest
from tests.cluster.planner.utilization.asking import ask, launched, on_nodes
from tests.support.builders import demand, gang, node_type, pack_node, pack_nodes

from muster.cluster.model import Strategy
from muster.cluster.planner.request import DemandKind, PackProblem, Placement, Unplaced
from muster.cluster.planner.utilization.fill import Filler
from muster.cluster.planner.utilization.grouping import NodeGrouping, demand_requests, runs_of
from muster.cluster.planner.utilization.select import CandidateQueue, FillCache
from muster.cluster.planner.utilization.solve import Fleet, PlacementLog
from muster.cluster.states import InstanceState

CPU1, CPU2, CPU4 = (node_type(f"cpu{n}", {"CPU": n}) for n in (1, 2, 4))
QUEUED = InstanceState.QUEUED


def test_sd30_many_equal_requests_are_one_run_and_one_fill():
    wanted = [demand({"CPU": 1})] * 1000
    runs = runs_of(demand_requests(wanted))
    assert [run.amount for run in runs] == [1000]
    solution = ask([], [pack_node("i", CPU1)], demands=wanted)
    assert solution.placements == (Placement(DemandKind.DEMAND, False, 0, 0, "cpu1", 1),)
    assert solution.unplaced == tuple(Unplaced(DemandKind.DEMAND, False, item, 1) for item in range(1, 1000))


def test_sd32_equal_nodes_share_one_state_and_are_taken_in_one_step():
    nodes = pack_nodes(100, CPU2, state=QUEUED)
    demands = (demand({"CPU": 1}, 150),)
    grouping = NodeGrouping(PackProblem(nodes=nodes, offers=(), room=None, demands=demands))
    fleet = Fleet(grouping, PlacementLog(), DemandKind.DEMAND)
    assert len({id(state) for state in fleet.states}) == 1
    queue = CandidateQueue(FillCache(Filler(runs_of(demand_requests(demands)), grouping.columns)))
    queue.add([(fleet.states[0], 0)])
    leader = queue.leader()
    assert leader is not None
    assert queue.repeats(leader) == 75


def test_nodes_that_differ_only_in_unused_resources_share_one_state():
    nodes = tuple(
        pack_node(f"i-{n}", CPU1, total={"CPU": 1, f"node:10.0.0.{n}": 1}, labels={"id": str(n)})
        for n in range(50)
    )
    grouping = NodeGrouping(PackProblem(nodes=nodes, offers=(), room=None, demands=(demand(),)))
    assert len({id(grouping.node_state(n, DemandKind.DEMAND)) for n in range(50)}) == 1


def test_sd41_exhausted_nodes_are_passed_over():
    full = pack_nodes(3, CPU1, available=demand({"CPU": 0}).shape)
    assert launched([CPU1], full, demands=[demand({"CPU": 1}, 2)]) == ({"cpu1": 2}, 0)


def test_sd42_nodes_too_small_for_the_request_are_passed_over():
    assert launched([CPU4], pack_nodes(3, CPU2), demands=[demand({"CPU": 4}, 3)]) == ({"cpu4": 3}, 0)


def test_sd43_roomy_nodes_are_used():
    assert launched([CPU4], pack_nodes(3, CPU4), demands=[demand({"CPU": 4}, 3)]) == ({}, 0)


def test_exact_ties_go_to_the_first_in_the_list():
    assert on_nodes(ask([], pack_nodes(4, CPU1), demands=[demand({"CPU": 1}, 2)])) == {0: 1, 1: 1}


def test_equal_score_of_different_kinds_still_goes_by_the_list():
    # The two kinds score the same, and stand in turn in the list.
    mixed = [
        pack_node(f"i-{n}", CPU1, state=QUEUED if n % 2 else InstanceState.RAY_RUNNING) for n in range(6)
    ]
    assert on_nodes(ask([], mixed, demands=[demand({"CPU": 1}, 4)])) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_the_fuller_node_is_taken_first():
    nodes = [pack_node("wide", CPU4), pack_node("tight", CPU4, available={"CPU": 1})]
    assert on_nodes(ask([], nodes, demands=[demand()])) == {1: 1}


def test_nodes_picked_for_a_gang_stand_first_afterwards():
    # The bundle uses up nothing that counts, so only the list tells the two nodes apart.
    implicit = {"node:__internal_implicit_resource_x": 1}
    nodes = [pack_node("holds", CPU4, labels={"_PG_g-1": ""}), pack_node("free", CPU4)]
    wanted = [demand({"CPU": 1})]
    assert on_nodes(ask([], nodes, demands=wanted)) == {0: 1}
    solution = ask([], nodes, gangs=[gang([implicit], Strategy.STRICT_SPREAD)], demands=wanted)
    assert on_nodes(solution) == {1: 2}


def test_running_nodes_that_fit_no_shape_go_behind_the_others():
    # Tried for the gang's 3 CPUs, the running 2-CPU nodes are set aside; the one on its way is not.
    running = pack_node("running", CPU2)
    coming = pack_node("coming", CPU2, state=QUEUED)
    big = pack_node("big", CPU4, available={"CPU": 3})
    wanted = demand({"CPU": 2})
    assert on_nodes(ask([], [running, coming, big], demands=[wanted])) == {0: 1}
    solution = ask([], [running, coming, big], gangs=[gang([{"CPU": 3}])], demands=[wanted])
    assert on_nodes(solution) == {1: 1, 2: 1}


def test_with_no_requests_the_list_keeps_its_order():
    grouping = NodeGrouping(PackProblem(nodes=pack_nodes(3, CPU1), offers=(), room=None))
    fleet = Fleet(grouping, PlacementLog(), DemandKind.DEMAND)
    fleet.place(())
    assert fleet.order == [0, 1, 2]


def test_a_constraint_is_held_against_totals_and_leaves_the_demand_book_alone():
    busy = pack_node("i", CPU4, available={"CPU": 1})
    solution = ask([CPU4], [busy], constraints=[demand({"CPU": 4})], demands=[demand({"CPU": 1})])
    assert (solution.launch, solution.unplaced) == ({}, ())
    assert (on_nodes(solution, DemandKind.CONSTRAINT), on_nodes(solution)) == ({0: 1}, {0: 1})


def test_machines_bought_for_a_constraint_serve_demands():
    solution = ask([CPU4], constraints=[demand({"CPU": 4}, 2)], demands=[demand({"CPU": 1}, 8)])
    assert (solution.launch, on_nodes(solution)) == ({"cpu4": 2}, {-1: 8})


def test_w31_the_bundles_of_a_constraint_that_fit_stay():
    solution = ask([CPU4], constraints=[demand({"CPU": 8}), demand({"CPU": 4}, 2)])
    assert solution.launch == {"cpu4": 2}
    assert solution.unplaced == (Unplaced(DemandKind.CONSTRAINT, False, 0, 1),)


def test_machines_bought_in_one_step_count_against_the_limits_of_the_next():
    solution = ask(
        [CPU1],
        room=3,
        constraints=[demand()],
        gangs=[gang([{"CPU": 1}] * 2)],
        demands=[demand({"CPU": 1}, 3)],
    )
    assert solution.launch == {"cpu1": 3}
    assert solution.unplaced == (Unplaced(DemandKind.DEMAND, False, 0, 2),)


def test_equal_demands_are_served_in_the_order_they_came():
    nodes = pack_nodes(2, CPU2)
    solution = ask([], nodes, demands=[demand({"CPU": 1}, 3), demand({"CPU": 1}, 3)])
    assert sorted(p[2:4] + p[5:] for p in solution.placements) == [(0, 0, 2), (0, 1, 1), (1, 1, 1)]
    assert solution.unplaced == (Unplaced(DemandKind.DEMAND, False, 1, 2),)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_asked_for_is_nothing_bought(count):
    solution = ask([CPU1], pack_nodes(count, CPU1), demands=[demand({"CPU": 1}, 0)])
    assert (solution.launch, solution.placements, solution.unplaced) == ({}, (), ())
