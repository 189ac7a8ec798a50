"""Requests for a resource that only one node has (`node:<ip>`), with both objectives."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.planner.checker import broken_rules, broken_rules_in_detail
from tests.cluster.planner.problems import problems
from tests.support.builders import demand, gang, pack_request, selector

from muster.base.resources import Resources
from muster.cluster.model import Demand, Gang, NodeType, Strategy
from muster.cluster.plan import Subject
from muster.cluster.planner.cost import solve_cost, solve_detailed
from muster.cluster.planner.explain import explain
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import DemandKind, PackNode, PackProblem, PackSolution, TypeOffer
from muster.cluster.planner.utilization import solve_utilization
from muster.cluster.states import ResizeLimits, ResizeStatus

TYPE = NodeType(name="m", resources=Resources.of(CPU=8), price_per_hour=1.0)
both = pytest.mark.parametrize("solve", [solve_cost, solve_utilization])


def ip(number: int) -> str:
    return f"node:10.0.{number >> 8}.{number & 255}"


def nodes(count: int, free: float = 4, **labels: str) -> tuple[PackNode, ...]:
    return tuple(
        PackNode(
            key=f"n{i}",
            node_type="m",
            total=Resources.of({"CPU": 8, ip(i): 1}),
            available=Resources.of({"CPU": free, ip(i): 1}),
            labels=labels,
        )
        for i in range(count)
    )


def on(number: int, cpus: float = 1, count: int = 1, **changes: object) -> Demand:
    return demand({"CPU": cpus, ip(number): 0.001}, count, **changes)


def problem(
    *demands: Demand, there: tuple[PackNode, ...] = (), room: int = 100, **more: object
) -> PackProblem:
    offers = (TypeOffer(node_type=TYPE, room=room),)
    return PackProblem(nodes=there or nodes(4), offers=offers, room=None, demands=demands, **more)


def seats(solution: PackSolution) -> list[tuple[bool, int, int, int]]:
    return sorted((p.is_gang, p.item, p.node, p.amount) for p in solution.placements)


@both
def test_a_pinned_request_gets_its_node_and_the_others_go_around_it(solve) -> None:
    asked = problem(demand({"CPU": 4}, 3), on(2, cpus=4))
    solution = solve(asked)
    assert seats(solution) == [(False, 0, 0, 1), (False, 0, 1, 1), (False, 0, 3, 1), (False, 1, 2, 1)]
    assert broken_rules(asked, solution) == []


def test_a_request_that_could_be_elsewhere_makes_way_for_one_that_could_not() -> None:
    """Ray's rule fills a node with the larger request first, so this is the cost objective's alone."""
    asked = problem(demand({"CPU": 4}, 1), on(0, cpus=1), there=nodes(1), room=1)
    solution = solve_cost(asked)
    assert (seats(solution), solution.launch) == ([(False, 0, -1, 1), (False, 1, 0, 1)], {"m": 1})


@both
def test_what_no_node_has_is_unplaced_and_nothing_is_bought_for_it(solve) -> None:
    solution = solve(problem(on(17, count=3), on(1)))
    assert (seats(solution), dict(solution.launch)) == ([(False, 1, 1, 1)], {})
    assert [(u.item, u.amount) for u in solution.unplaced] == [(0, 3)]


@both
def test_more_pinned_requests_than_the_node_holds_wait(solve) -> None:
    solution = solve(problem(on(0, count=6)))
    assert (seats(solution), dict(solution.launch)) == ([(False, 0, 0, 4)], {})
    assert [(u.item, u.amount) for u in solution.unplaced] == [(0, 2)]


@both
def test_the_pin_itself_runs_out(solve) -> None:
    asked = problem(demand({"CPU": 1, ip(0): 0.4}, 3))
    assert seats(solve(asked)) == [(False, 0, 0, 2)]


def test_on_one_node_the_most_requests_are_served() -> None:
    solution = solve_cost(problem(on(0, cpus=3), on(0, cpus=1, count=2), on(0, cpus=2)))
    assert seats(solution) == [(False, 1, 0, 2), (False, 3 - 1, 0, 1)]


@both
def test_constraints_are_pinned_against_totals(solve) -> None:
    asked = problem(on(0, cpus=4), constraints=(on(0, cpus=8), on(1, cpus=8)))
    solution = solve(asked)
    kinds = sorted((p.kind is DemandKind.CONSTRAINT, p.item, p.node) for p in solution.placements)
    assert kinds == [(False, 0, 0), (True, 0, 0), (True, 1, 1)]
    assert broken_rules(asked, solution) == []


@both
@pytest.mark.parametrize("in_progress", [True, False])
def test_a_node_that_grows_is_counted_once(solve, in_progress: bool) -> None:
    grows = replace(TYPE, resize=ResizeLimits(maximum=Resources.of(CPU=16)))
    status = ResizeStatus(
        current=Resources.of(CPU=8),
        desired=Resources.of(CPU=16 if in_progress else 8),
        in_progress=in_progress,
    )
    there = (replace(nodes(1)[0], resize=status),)
    asked = problem(there=there, constraints=(on(0, cpus=5), demand({"CPU": 12})), room=0)
    asked = replace(asked, offers=(TypeOffer(node_type=grows, room=0),))
    solution = solve(asked)
    assert broken_rules(asked, solution) == []
    assert sum(p.amount for p in solution.placements) == 1


@both
def test_a_label_of_the_node_still_decides(solve) -> None:
    there = nodes(2, zone="a")
    wrong, right = (selector(zone="b"),), (selector(zone="b"), selector(zone="a"))
    solution = solve(problem(on(0, selectors=wrong), on(1, selectors=right), there=there))
    assert seats(solution) == [(False, 1, 1, 1)]


@both
def test_pinned_requests_that_avoid_each_other_do_not_share_the_node(solve) -> None:
    asked = problem(on(0, count=3, avoid=("app", "x")))
    solution = solve(asked)
    assert seats(solution) == [(False, 0, 0, 1)]
    assert broken_rules(asked, solution) == []


@both
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_gang_of_pinned_bundles_is_placed_whole_or_not_at_all(solve, strategy: Strategy) -> None:
    bundles = [on(0), on(0)] if strategy is Strategy.STRICT_PACK else [on(0), on(1), on(2)]
    fits = gang(bundles, strategy, "fits")
    too_large = gang([*bundles[1:], on(3, cpus=5)], strategy, "large")
    nowhere = gang([*bundles, on(99)], strategy, "nowhere")
    asked = problem(gangs=(fits, too_large, nowhere))
    solution = solve(asked)
    assert {(p.is_gang, p.item, p.node) for p in solution.placements} == {
        (True, 0, row) for row in range(1 if strategy is Strategy.STRICT_PACK else 3)
    }
    assert sorted((u.item, u.amount) for u in solution.unplaced) == [(1, len(bundles)), (2, len(bundles) + 1)]
    assert broken_rules(asked, solution) == []


@both
def test_a_strictly_spread_gang_does_not_put_two_bundles_on_the_node_that_both_name(solve) -> None:
    solution = solve(problem(gangs=(gang([on(0), on(0)], Strategy.STRICT_SPREAD),)))
    assert (solution.placements, [u.amount for u in solution.unplaced]) == ((), [2])


@both
def test_a_gang_with_one_pinned_bundle_keeps_the_other_bundles_free_to_go_anywhere(solve) -> None:
    there = nodes(2, free=2)
    mixed = gang([on(0, cpus=2), demand({"CPU": 2}), demand({"CPU": 8})])
    asked = problem(on(1, cpus=2), there=there, gangs=(mixed,))
    solution = solve(asked)
    assert [u for u in solution.unplaced if u.is_gang] == []
    assert (True, 0, 0, 1) in seats(solution)
    assert broken_rules(asked, solution) == []


def test_the_second_option_of_a_gang_is_taken_when_the_first_is_nowhere() -> None:
    asked = problem(gangs=(replace(gang([on(99)]), options=((on(99),), (on(1, cpus=9),), (on(2),))),))
    assert seats(solve_cost(asked)) == [(True, 0, 2, 1)]


PINS = ("node:a", "node:b", "node:c")


@st.composite
def pinned_problems(draw: st.DrawFn) -> PackProblem:
    """Any problem, with pins: each on one node, on two, or on none; asked for by demands and bundles."""
    base = draw(problems())
    there = list(base.nodes)
    for name in PINS[:2]:
        for at in draw(st.lists(st.integers(0, max(len(there) - 1, 0)), max_size=2, unique=True)):
            if there:
                more = Resources.of({name: 1})
                node = there[at]
                there[at] = replace(node, total=node.total.plus(more), available=node.available.plus(more))

    def pin(asked: Demand) -> Demand:
        name = draw(st.sampled_from([None, None, *PINS]))
        return asked if name is None else replace(asked, shape=asked.shape.plus(Resources.of({name: 0.25})))

    def pinned(asked: Gang) -> Gang:
        return replace(asked, options=tuple(tuple(pin(d) for d in option) for option in asked.options))

    return replace(
        base,
        nodes=tuple(there),
        demands=tuple(pin(d) for d in base.demands),
        constraints=tuple(pin(d) for d in base.constraints),
        gangs=tuple(pinned(g) for g in base.gangs),
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(pinned_problems())
def test_every_plan_with_pins_is_possible(asked: PackProblem) -> None:
    detail = solve_detailed(asked)
    assert broken_rules_in_detail(asked, detail) == []
    assert solve_cost(asked) == detail.solution


@pytest.mark.slow
@both
def test_time_does_not_follow_pins_times_nodes(solve) -> None:
    there = nodes(10_000)
    pins = tuple(on(i * 5, cpus=1 + i % 2) for i in range(2000))
    asked = problem(demand({"CPU": 1}, 500), *pins, there=there)
    started = time.process_time()
    solution = solve(asked)
    assert (solution.unplaced, time.process_time() - started < 2.0) == ((), True)


@pytest.mark.slow
def test_reasons_for_pinned_demand_take_time_by_pins_and_not_by_pins_times_nodes() -> None:
    request = pack_request(
        [replace(TYPE, max_nodes=20_000)],
        nodes=nodes(10_000, free=0),
        demands=tuple(on(i * 5) for i in range(2000)),
    )
    packing = pack(request)
    started = time.process_time()
    verdicts = explain(request, packing)
    took_s = time.process_time() - started
    assert [v.target for v in verdicts if v.subject is Subject.DEMAND] == [f"n{i * 5}" for i in range(2000)]
    assert took_s < 1.5


@pytest.mark.slow
@both
def test_gangs_whose_bundles_are_pinned_take_time_by_gangs(solve) -> None:
    asked = problem(
        there=nodes(10_000),
        gangs=tuple(gang([on(10 * i), on(10 * i + 1)], gang_id=f"g{i}") for i in range(400)),
    )
    started = time.process_time()
    solution = solve(asked)
    assert (solution.unplaced, time.process_time() - started < 6.0) == ((), True)
