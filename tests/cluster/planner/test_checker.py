"""The checker of plans finds each kind of broken plan: otherwise the property tests would prove nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.planner.checker import broken_rules
from tests.support.builders import demand, gang, node_type, offer, pack_node, selector

from muster.base.resources import Resources
from muster.cluster.model import Strategy
from muster.cluster.planner.request import DemandKind, PackProblem, PackSolution, Placement, Unplaced

TYPE = node_type("t", {"CPU": 4}, labels={"zone": "a"})
PROBLEM = PackProblem(
    nodes=(pack_node("i-1", TYPE, available={"CPU": 2}), pack_node("i-2", TYPE, labels={"_PG_s": ""})),
    offers=(offer(TYPE, room=3),),
    room=2,
    demands=(demand({"CPU": 2}, 2, selectors=(selector(zone="a"),)), demand({"CPU": 1}, avoid=("zone", "b"))),
    gangs=(
        gang([{"CPU": 1}] * 2, Strategy.STRICT_SPREAD, "s"),
        gang([{"CPU": 2}] * 2, Strategy.STRICT_PACK, "p"),
    ),
    constraints=(demand({"CPU": 4}, 2),),
)


def on(
    item: int, node: int, amount: int, is_gang: bool = False, kind: DemandKind = DemandKind.DEMAND
) -> Placement:
    return Placement(kind, is_gang, item, node, "t", amount)


GOOD = PackSolution(
    launch={"t": 2},
    placements=(
        on(0, 0, 1),
        on(0, -1, 1),
        on(1, -1, 1),
        on(0, -1, 2, is_gang=True),
        on(0, 0, 1, kind=DemandKind.CONSTRAINT),
        on(0, 1, 1, kind=DemandKind.CONSTRAINT),
    ),
    unplaced=(Unplaced(DemandKind.DEMAND, True, 1, 2),),
)


def swapped(index: int, *by: Placement) -> PackSolution:
    kept = GOOD.placements
    return replace(GOOD, placements=(*kept[:index], *by, *kept[index + 1 :]))


def test_a_good_plan_breaks_nothing() -> None:
    assert broken_rules(PROBLEM, GOOD) == []


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (swapped(0), "accounted for"),
        (swapped(2, on(1, -1, 2)), "accounted for"),
        (replace(GOOD, unplaced=()), "gang 1"),
        (swapped(3, on(0, -1, 1, is_gang=True)), "gang 0"),
        (replace(GOOD, launch={"t": 3}), "room for 2"),
        (replace(GOOD, launch={}), "not launched"),
        (swapped(0, on(0, 1, 1)), "labels"),
        (swapped(0, on(0, 7, 1)), "no such node"),
        (swapped(3, on(0, 0, 2, is_gang=True)), "not spread"),
        (swapped(3, on(0, 1, 1, is_gang=True), on(0, -1, 1, is_gang=True)), "not spread"),
        (swapped(1, on(0, 0, 1)), "lacks"),
        (swapped(4, on(0, 1, 1, kind=DemandKind.CONSTRAINT)), "lacks"),
        (replace(GOOD, launch={"t": 1}), "lack"),
        (replace(GOOD, resize={0: Resources.of(CPU=8)}), "may not be resized"),
        (replace(GOOD, unplaced=(*GOOD.unplaced, Unplaced(DemandKind.DEMAND, False, 9, 1))), "unknown item"),
    ],
)
def test_a_broken_plan_is_named(plan: PackSolution, word: str) -> None:
    assert any(word in rule for rule in broken_rules(PROBLEM, plan)), broken_rules(PROBLEM, plan)


def test_a_strictly_packed_gang_in_two_places_is_named() -> None:
    apart = (on(1, 0, 1, is_gang=True), on(1, 1, 1, is_gang=True))
    plan = replace(
        GOOD, placements=(*GOOD.placements[1:], *apart), unplaced=(Unplaced(DemandKind.DEMAND, False, 0, 1),)
    )
    (broken,) = broken_rules(PROBLEM, plan)
    assert broken.startswith("gang 1 ")


def test_two_that_avoid_each_other_on_one_node_are_named() -> None:
    problem = PackProblem(
        nodes=(pack_node("i-1", TYPE),),
        offers=(),
        room=0,
        demands=(demand({"CPU": 1}, 2, avoid=("app", "x")),),
    )
    plan = PackSolution(launch={}, placements=(on(0, 0, 2),), unplaced=())
    assert any("avoid" in rule for rule in broken_rules(problem, plan))


def test_pieces_that_fit_in_sum_but_not_each_on_a_machine_are_named() -> None:
    problem = PackProblem(nodes=(), offers=(offer(TYPE),), room=None, demands=(demand({"CPU": 3}, 2),))
    plan = PackSolution(launch={"t": 1}, placements=(on(0, -1, 2),), unplaced=())
    assert broken_rules(problem, plan) != []
    sums_fit = replace(problem, demands=(demand({"CPU": 2.5}, 3),))
    plan = PackSolution(launch={"t": 2}, placements=(on(0, -1, 3),), unplaced=())
    (broken,) = broken_rules(sums_fit, plan)
    assert broken.startswith("2 x t ")
