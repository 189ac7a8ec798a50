"""What the cost engine promises, one small problem each; every plan also passes the checker."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.cluster.planner.checker import broken_rules_in_detail
from tests.support.builders import demand, node_type, offer, pack_node, selector

from muster.base.resources import Resources
from muster.cluster.model import NodeType
from muster.cluster.planner.cost import solve_detailed
from muster.cluster.planner.request import (
    DemandKind,
    PackNode,
    PackProblem,
    PackSolution,
    Placement,
    TypeOffer,
    Unplaced,
)
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

IMPLICIT = "node:__internal_implicit_resource_lock"

SMALL = node_type("small", {"CPU": 4}, price_per_hour=1.0)
LARGE = node_type("large", {"CPU": 16}, price_per_hour=3.0)
GPU = node_type("gpu", {"CPU": 8, "GPU": 2}, price_per_hour=5.0)


def plan(
    types: Sequence[NodeType | TypeOffer],
    nodes: Sequence[PackNode] = (),
    room: int | None = None,
    **asked: object,
) -> PackSolution:
    offers = tuple(of if isinstance(of, TypeOffer) else offer(of) for of in types)
    problem = PackProblem(nodes=tuple(nodes), offers=offers, room=room, **asked)
    detail = solve_detailed(problem)
    assert broken_rules_in_detail(problem, detail) == []
    return detail.solution


def on_node(item: int, node: int, name: str, amount: int, kind: DemandKind = DemandKind.DEMAND) -> Placement:
    return Placement(kind, False, item, node, name, amount)


def test_nothing_asked_is_nothing_done() -> None:
    assert plan([SMALL]) == PackSolution(launch={}, placements=(), unplaced=())


def test_large_machine_when_it_is_cheaper_per_request() -> None:
    solution = plan([SMALL, LARGE], demands=(demand({"CPU": 1}, 16),))
    assert solution == PackSolution(
        launch={"large": 1}, placements=(on_node(0, -1, "large", 16),), unplaced=()
    )


def test_small_machine_for_the_rest() -> None:
    assert plan([SMALL, LARGE], demands=(demand({"CPU": 1}, 19),)).launch == {"small": 1, "large": 1}


def test_nodes_that_are_there_are_used_before_anything_is_bought() -> None:
    node = pack_node("i-1", LARGE, available={"CPU": 5})
    solution = plan([SMALL, LARGE], [node], demands=(demand({"CPU": 1}, 7),))
    assert solution.launch == {"small": 1}
    assert solution.placements == (on_node(0, 0, "large", 5), on_node(0, -1, "small", 2))


def test_a_machine_on_its_way_counts_as_there() -> None:
    coming = pack_node("i-1", LARGE, state=InstanceState.ALLOCATED)
    assert plan([SMALL, LARGE], [coming], demands=(demand({"CPU": 1}, 16),)).launch == {}


def test_room_per_type_sends_the_rest_to_the_next_best_type() -> None:
    offers = [offer(SMALL), offer(LARGE, room=1)]
    assert plan(offers, demands=(demand({"CPU": 1}, 24),)).launch == {"small": 2, "large": 1}


def test_room_in_all_is_used_for_as_many_requests_as_possible() -> None:
    solution = plan([SMALL, LARGE], room=1, demands=(demand({"CPU": 16}), demand({"CPU": 1}, 20)))
    assert solution.launch == {"large": 1}
    assert sum(item.amount for item in solution.unplaced) == 5
    assert Unplaced(DemandKind.DEMAND, False, 0, 1) in solution.unplaced


def test_no_room_buys_nothing() -> None:
    solution = plan([SMALL], room=0, demands=(demand({"CPU": 1}, 2),))
    assert solution == PackSolution(
        launch={}, placements=(), unplaced=(Unplaced(DemandKind.DEMAND, False, 0, 2),)
    )


def test_a_shape_that_nothing_holds_stays_unplaced_and_the_rest_is_served() -> None:
    solution = plan([SMALL], demands=(demand({"CPU": 64}), demand({"TPU": 1}), demand({"CPU": 4})))
    assert solution.launch == {"small": 1}
    assert solution.unplaced == (
        Unplaced(DemandKind.DEMAND, False, 0, 1),
        Unplaced(DemandKind.DEMAND, False, 1, 1),
    )


def test_fractions_are_exact() -> None:
    assert plan([SMALL], demands=(demand({"CPU": 0.1}, 40),)).launch == {"small": 1}
    assert plan([SMALL], demands=(demand({"CPU": 0.1}, 41),)).launch == {"small": 2}


def test_memory_in_odd_bytes_is_exact() -> None:
    memory = node_type("m", {"memory": 3 * 1_000_003}, price_per_hour=1.0)
    assert plan([memory], demands=(demand({"memory": 1_000_003}, 3),)).launch == {"m": 1}
    assert plan([memory], demands=(demand({"memory": 1_000_004}, 3),)).launch == {"m": 2}


def test_an_empty_shape_needs_one_machine_whatever_its_count() -> None:
    assert plan([SMALL, LARGE], demands=(demand({}, 1_000),)).launch == {"small": 1}


def test_implicit_resource_counts_one_on_every_node() -> None:
    node = pack_node("i-1", SMALL)
    assert plan([SMALL], [node], demands=(demand({IMPLICIT: 0.5}, 2),)).launch == {}
    assert plan([SMALL], [node], demands=(demand({IMPLICIT: 1}, 3),)).launch == {"small": 2}


def test_custom_and_many_resources() -> None:
    rig = node_type("rig", {"CPU": 8, "memory": 64, "disk": 4, "licence": 2, "fpga": 1}, price_per_hour=4.0)
    asked = (demand({"CPU": 1, "disk": 2, "licence": 1}, 3), demand({"fpga": 1, "memory": 60}, 1))
    assert plan([SMALL, rig], demands=asked).launch == {"rig": 2}


def test_selector_decides_between_types() -> None:
    here = node_type("here", {"CPU": 4}, price_per_hour=9.0, labels={"zone": "a"})
    asked = (demand({"CPU": 1}, 4, selectors=(selector(zone="a"),)), demand({"CPU": 1}, 4))
    solution = plan([SMALL, here], demands=asked)
    assert solution.launch == {"small": 1, "here": 1}
    assert set(solution.placements) == {on_node(0, -1, "here", 4), on_node(1, -1, "small", 4)}


def test_selector_that_nothing_matches_leaves_the_request_unplaced() -> None:
    solution = plan([SMALL], demands=(demand(selectors=(selector(zone="z"),)),))
    assert solution.unplaced == (Unplaced(DemandKind.DEMAND, False, 0, 1),)


def test_earlier_selector_is_preferred_when_it_costs_nothing() -> None:
    a = node_type("a", {"CPU": 4}, price_per_hour=1.0, labels={"zone": "a"})
    b = node_type("b", {"CPU": 4}, price_per_hour=1.0, labels={"zone": "b"})
    asked = demand({"CPU": 1}, 4, selectors=(selector(zone="b"), selector(zone="a")))
    assert plan([a, b], demands=(asked,)).launch == {"b": 1}
    nodes = [pack_node("i-1", a), pack_node("i-2", b)]
    assert plan([a, b], nodes, demands=(asked,)).placements == (on_node(0, 1, "b", 4),)


def test_later_selector_is_taken_when_the_earlier_one_costs_more() -> None:
    a = node_type("a", {"CPU": 4}, price_per_hour=1.0, labels={"zone": "a"})
    b = node_type("b", {"CPU": 4}, price_per_hour=1.5, labels={"zone": "b"})
    asked = demand({"CPU": 1}, 4, selectors=(selector(zone="b"), selector(zone="a")))
    assert plan([a, b], demands=(asked,)).launch == {"a": 1}


def test_avoid_keeps_requests_with_the_same_mark_apart() -> None:
    apart = [demand({"CPU": 1}, 2, avoid=("app", "db")), demand({"CPU": 2}, 1, avoid=("app", "db"))]
    assert plan([SMALL, LARGE], demands=tuple(apart)).launch == {"small": 3}


def test_avoid_stays_off_nodes_that_carry_the_label() -> None:
    taken = pack_node("i-1", LARGE, labels={"app": "db"})
    other = pack_node("i-2", LARGE, labels={"app": "web"})
    solution = plan([SMALL], [taken, other], demands=(demand({"CPU": 1}, 2, avoid=("app", "db")),))
    assert solution.launch == {"small": 1}
    assert solution.placements == (on_node(0, 1, "large", 1), on_node(0, -1, "small", 1))


def test_cpu_work_is_kept_off_a_gpu_node_when_another_has_room() -> None:
    nodes = [pack_node("i-1", GPU), pack_node("i-2", LARGE)]
    assert plan([SMALL], nodes, demands=(demand({"CPU": 1}, 8),)).placements == (on_node(0, 1, "large", 8),)


def test_cpu_work_goes_to_a_gpu_node_before_money_is_spent() -> None:
    assert plan([SMALL], [pack_node("i-1", GPU)], demands=(demand({"CPU": 1}, 8),)).launch == {}


def test_gpu_work_is_not_crowded_out_of_the_gpu_node_by_cpu_work() -> None:
    asked = (demand({"CPU": 1}, 8), demand({"CPU": 4, "GPU": 1}, 2))
    assert plan([SMALL, GPU], [pack_node("i-1", GPU)], demands=asked).launch == {"small": 2}


def test_a_type_without_a_price_is_dear_but_not_forbidden() -> None:
    unknown = node_type("unknown", {"CPU": 4})
    asked = (demand({"CPU": 1}, 4),)
    assert plan([unknown, SMALL], demands=asked).launch == {"small": 1}
    assert plan([unknown, offer(SMALL, room=0)], demands=asked).launch == {"unknown": 1}


def test_free_machines_are_not_started_in_numbers() -> None:
    gift = node_type("gift", {"CPU": 4}, price_per_hour=0.0)
    assert plan([gift, SMALL], demands=(demand({"CPU": 1}, 9),)).launch == {"gift": 3}


def test_equal_prices_go_to_the_more_available_then_the_more_important_then_the_first_type() -> None:
    one = node_type("one", {"CPU": 4}, price_per_hour=1.0)
    two = node_type("two", {"CPU": 4}, price_per_hour=1.0)
    asked = (demand({"CPU": 4}),)
    assert plan([one, two], demands=asked).launch == {"one": 1}
    assert plan([offer(one, recoverable=0.5), two], demands=asked).launch == {"two": 1}
    important = node_type("two", {"CPU": 4}, price_per_hour=1.0, priority=5)
    assert plan([one, important], demands=asked).launch == {"two": 1}
    assert plan([offer(one, availability=0.5), two], demands=asked).launch == {"two": 1}


def test_constraint_counts_what_is_there_in_all_not_what_is_free() -> None:
    busy = pack_node("i-1", LARGE, available={"CPU": 0})
    solution = plan([SMALL], [busy], constraints=(demand({"CPU": 1}, 18),))
    assert solution.launch == {"small": 1}
    assert solution.placements == (
        on_node(0, 0, "large", 16, DemandKind.CONSTRAINT),
        on_node(0, -1, "small", 2, DemandKind.CONSTRAINT),
    )


def test_machines_bought_for_demand_count_for_the_constraint() -> None:
    solution = plan([SMALL], demands=(demand({"CPU": 1}, 8),), constraints=(demand({"CPU": 4}, 2),))
    assert solution.launch == {"small": 2}


def test_the_cheaper_order_of_the_two_books_is_taken() -> None:
    """Demand alone would launch 3 small; the constraint needs a large one, which then holds the demand."""
    solution = plan([SMALL, LARGE], demands=(demand({"CPU": 4}, 3),), constraints=(demand({"CPU": 16}),))
    assert solution.launch == {"large": 1}


def test_an_impossible_bundle_of_a_constraint_does_not_cancel_the_others() -> None:
    solution = plan([SMALL], constraints=(demand({"CPU": 99}), demand({"CPU": 4}, 2)))
    assert solution.launch == {"small": 2}
    assert solution.unplaced == (Unplaced(DemandKind.CONSTRAINT, False, 0, 1),)


GROWING = node_type("grow", {"CPU": 4}, price_per_hour=1.0, resize=ResizeLimits(maximum=Resources.of(CPU=8)))


def growing(**changes: object) -> PackNode:
    four = Resources.of(CPU=4)
    status = {"current": four, "desired": four} | changes
    return pack_node("i-1", GROWING, resize=ResizeStatus(**status))


def test_a_node_grows_in_place_before_a_machine_is_bought() -> None:
    solution = plan([GROWING], [growing()], demands=(demand({"CPU": 1}, 6),))
    assert (solution.launch, solution.resize) == ({}, {0: Resources.of(CPU=8)})


def test_a_node_does_not_grow_for_what_fits_as_it_is() -> None:
    assert plan([GROWING], [growing()], demands=(demand({"CPU": 1}, 4),)).resize == {}


def test_a_resize_under_way_counts_as_done_and_a_failed_one_is_not_asked_again() -> None:
    asked = (demand({"CPU": 1}, 6),)
    under_way = growing(desired=Resources.of(CPU=8), in_progress=True)
    assert plan([GROWING], [under_way], demands=asked).launch == {}
    failed = plan([GROWING], [growing(failed=True)], demands=asked)
    assert (failed.launch, failed.resize) == ({"grow": 1}, {})


def test_a_node_grows_only_to_what_its_host_can_give() -> None:
    hinted = growing(suggested_maximum=Resources.of(CPU=5))
    solution = plan([GROWING], [hinted], demands=(demand({"CPU": 1}, 6),))
    assert (solution.launch, solution.resize) == ({"grow": 1}, {0: Resources.of(CPU=5)})


def test_a_coming_node_is_used_at_full_size_without_a_resize() -> None:
    coming = replace(growing(), state=InstanceState.ALLOCATED)
    solution = plan([GROWING], [coming], demands=(demand({"CPU": 1}, 6),))
    assert (solution.launch, solution.resize) == ({}, {})


def test_a_new_machine_is_as_large_as_it_may_become() -> None:
    assert plan([GROWING], demands=(demand({"CPU": 1}, 8),)).launch == {"grow": 1}


def test_growth_for_demand_is_there_for_the_constraint_too() -> None:
    asked = {"demands": (demand({"CPU": 1}, 6),), "constraints": (demand({"CPU": 8}),)}
    solution = plan([GROWING], [growing()], **asked)
    assert (solution.launch, solution.resize) == ({}, {0: Resources.of(CPU=8)})


def test_running_nodes_are_used_before_those_on_their_way() -> None:
    nodes = [pack_node("i-1", LARGE, state=InstanceState.ALLOCATED), pack_node("i-2", LARGE)]
    assert plan([SMALL], nodes, demands=(demand({"CPU": 1}, 3),)).placements == (on_node(0, 1, "large", 3),)


def test_the_fuller_node_is_filled_so_that_the_free_one_can_go() -> None:
    nodes = [pack_node("i-1", LARGE), pack_node("i-2", LARGE, available={"CPU": 4})]
    assert plan([SMALL], nodes, demands=(demand({"CPU": 1}, 3),)).placements == (on_node(0, 1, "large", 3),)


def test_without_types_and_nodes_everything_is_unplaced() -> None:
    solution = plan([], demands=(demand({"CPU": 1}, 3),), constraints=(demand({}, 1),))
    assert (solution.launch, sum(item.amount for item in solution.unplaced)) == ({}, 4)


def test_nodes_of_a_type_that_is_no_longer_sold_still_serve() -> None:
    old = pack_node("i-1", node_type("old", {"CPU": 8}))
    assert plan([SMALL], [old], demands=(demand({"CPU": 1}, 8),)).launch == {}
