"""Check in-place resize."""

from __future__ import annotations

import pytest
from tests.cluster.planner.utilization.asking import ask, on_nodes
from tests.support.builders import demand, gang, node_type, pack_node

from muster.base.resources import Resources
from muster.cluster.model import Strategy
from muster.cluster.planner.request import DemandKind
from muster.cluster.states import InstanceState, ResizeLimits, ResizeStatus

SMALL, LARGE = Resources.of(CPU=1), Resources.of(CPU=4)
GROWS = node_type("grows", SMALL, resize=ResizeLimits(maximum=LARGE))
STILL = ResizeStatus(current=SMALL, desired=SMALL)


def growing(key="i", available=SMALL, **changes):
    changes.setdefault("resize", STILL)
    return pack_node(key, GROWS, available=available, **changes)


def outcome(solution):
    return dict(solution.launch), dict(solution.resize), sum(u.amount for u in solution.unplaced)


def test_sd33_a_node_is_enlarged_instead_of_a_machine_bought():
    assert outcome(ask([GROWS], [growing()], demands=[demand({"CPU": 3})])) == ({}, {0: LARGE}, 0)


def test_sd34_a_node_going_back_to_its_small_size_does_not_count_as_large():
    back = ResizeStatus(current=LARGE, desired=SMALL, in_progress=True)
    node = pack_node("i", GROWS, total=LARGE, resize=back)
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 3})])) == ({"grows": 1}, {}, 0)


def test_sd35_a_resize_under_way_is_not_enlarged_again():
    status = ResizeStatus(current=SMALL, desired=Resources.of(CPU=2), in_progress=True)
    node = growing(resize=status)
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 3})])) == ({"grows": 1}, {}, 0)


def test_sd36_a_resize_under_way_counts_at_its_coming_size():
    status = ResizeStatus(current=SMALL, desired=Resources.of(CPU=3), in_progress=True)
    node = growing(available=Resources.of(CPU=0), resize=status)
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 1}, 3)])) == ({"grows": 1}, {}, 0)
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 1}, 2)])) == ({}, {}, 0)


@pytest.mark.parametrize("status", [STILL, None])
def test_sd37_a_machine_on_its_way_takes_the_work_and_is_not_resized(status):
    node = growing(state=InstanceState.ALLOCATED, resize=status)
    solution = ask([GROWS], [node], demands=[demand({"CPU": 3})])
    assert (outcome(solution), on_nodes(solution)) == (({}, {}, 0), {0: 1})


def test_sd38_nodes_that_are_not_chosen_keep_their_size():
    solution = ask([GROWS], [growing("i-1"), growing("i-2")], demands=[demand({"CPU": 3})])
    assert (outcome(solution), on_nodes(solution)) == (({}, {0: LARGE}, 0), {0: 1})


@pytest.mark.parametrize(("count", "machines"), [(4, 1), (6, 2)])
def test_sd39_sd40_a_new_machine_counts_at_its_largest_size(count, machines):
    assert outcome(ask([GROWS], demands=[demand({"CPU": 1}, count)])) == ({"grows": machines}, {}, 0)


def test_room_that_is_there_is_used_before_a_node_is_enlarged():
    solution = ask([GROWS], [growing("i-1"), growing("i-2")], demands=[demand({"CPU": 1}, 2)])
    assert (outcome(solution), on_nodes(solution)) == (({}, {}, 0), {0: 1, 1: 1})


def test_a_node_that_just_took_work_can_still_be_enlarged():
    solution = ask([GROWS], [growing()], demands=[demand({"CPU": 1}, 4)])
    assert (outcome(solution), on_nodes(solution)) == (({}, {0: LARGE}, 0), {0: 4})


def test_a_full_node_that_fits_nothing_can_still_be_enlarged():
    node = growing(available=Resources.of(CPU=0))
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 3})])) == ({}, {0: LARGE}, 0)


def test_a_node_whose_resize_failed_is_left_alone():
    node = growing(resize=ResizeStatus(current=SMALL, desired=SMALL, failed=True))
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 3})])) == ({"grows": 1}, {}, 0)


def test_what_the_host_can_give_bounds_the_new_size():
    node = growing(resize=ResizeStatus(current=SMALL, desired=SMALL, suggested_maximum=Resources.of(CPU=2)))
    assert outcome(ask([GROWS], [node], room=0, demands=[demand({"CPU": 3})])) == ({}, {}, 1)
    assert outcome(ask([GROWS], [node], demands=[demand({"CPU": 2})])) == ({}, {0: Resources.of(CPU=2)}, 0)
    full = growing(resize=ResizeStatus(current=SMALL, desired=SMALL, suggested_maximum=SMALL))
    assert outcome(ask([GROWS], [full], demands=[demand({"CPU": 2})])) == ({"grows": 1}, {}, 0)


def test_a_node_is_enlarged_once_in_a_pass():
    solution = ask([GROWS], [growing()], room=0, gangs=[gang([{"CPU": 3}])], demands=[demand({"CPU": 1}, 2)])
    assert (outcome(solution), on_nodes(solution)) == (({}, {0: LARGE}, 1), {0: 2})


def test_a_gang_that_is_refused_enlarges_nothing():
    solution = ask([GROWS], [growing()], room=0, gangs=[gang([{"CPU": 3}] * 2)])
    assert outcome(solution) == ({}, {}, 2)


def test_a_spread_gang_does_not_use_a_node_twice_by_enlarging_it():
    solution = ask([GROWS], [growing()], gangs=[gang([{"CPU": 1}] * 2, Strategy.STRICT_SPREAD)])
    assert (outcome(solution), on_nodes(solution)) == (({"grows": 1}, {}, 0), {-1: 1, 0: 1})


def test_a_node_enlarged_for_a_constraint_is_large_for_demands_too():
    solution = ask(
        [GROWS], [growing()], room=0, constraints=[demand({"CPU": 4})], demands=[demand({"CPU": 1}, 4)]
    )
    assert outcome(solution) == ({}, {0: LARGE}, 0)
    assert (on_nodes(solution), on_nodes(solution, DemandKind.CONSTRAINT)) == ({0: 4}, {0: 1})
