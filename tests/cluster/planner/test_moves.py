"""What a trial costs elsewhere: beside others, after them, and on machines of its own."""

from __future__ import annotations

import math

import pytest
from tests.support.builders import amounts, node_type

from muster.base.forecast import RunningTrial
from muster.base.resources import EMPTY
from muster.cluster.planner.moves import BusyNode, FreeRoom, MachineMarket, emptied, fitting_rooms
from muster.cluster.planner.request import Packing, TypeOffer

HOUR = 3600.0
SMALL = node_type("small", {"CPU": 2}, price_per_hour=1.0, max_nodes=9)
LARGE = node_type("large", {"CPU": 8}, price_per_hour=4.0, max_nodes=9)


def trial(name="x", cpus=2, **changes):
    usual = {"is_movable": True, "rest_s": HOUR, "shape": amounts({"CPU": cpus})}
    return RunningTrial(trial_id=name, node_id="n", **{**usual, **changes})


def room(**changes):
    usual = {"free": amounts({"CPU": 2}), "price": 4.0, "speed": 1.0, "end_s": HOUR, "worth": 4.0}
    return FreeRoom(**{**usual, **changes})


def market(*types, room=9):
    offers = tuple(TypeOffer(node_type=one, room=one.max_nodes) for one in types)
    return MachineMarket(Packing(launch={}, offers=offers, room=room), boot_s=180.0)


def busy(*trials, **changes):
    usual = {"key": "a", "node_type": "large", "total": LARGE.resources, "price": 4.0, "speed": 1.0}
    return BusyNode(trials=trials, **{**usual, **changes})


def test_beside_work_of_which_the_end_is_not_known_a_trial_costs_nothing():
    assert room(end_s=math.inf).added(trial(), HOUR, own=1.0) == 0.0


def test_a_trial_on_an_empty_node_that_may_not_be_moved_again_costs_the_node():
    moved = trial(moved_at=0.0)
    assert room(end_s=0.0, worth=0.0).added(moved, HOUR, own=1.0) == pytest.approx(4.0)


def test_a_trial_that_may_be_moved_again_holds_an_empty_node_until_then():
    """Ten minutes of the node, then fifty of a machine of its own."""
    cost = room(end_s=0.0, worth=0.0).added(trial(), HOUR, own=1.0)
    assert cost == pytest.approx(4.0 / 6 + 1.0 * 5 / 6)


def test_a_trial_as_long_as_those_on_the_node_is_alone_half_of_its_time():
    assert room().added(trial(moved_at=0.0), HOUR, own=1.0) == pytest.approx(2.0)


def test_on_a_node_that_is_not_worth_its_price_one_more_trial_is_not_free():
    firm = room(end_s=1e9).added(trial(), HOUR, own=1.0)
    loose = room(end_s=1e9, worth=1.0).added(trial(), HOUR, own=1.0)
    assert (firm, loose) == (pytest.approx(0.0, abs=1e-3), pytest.approx(1.0, abs=1e-3))


def test_one_machine_for_all_is_compared_with_one_for_each():
    two = [trial("x"), trial("y")]
    assert market(SMALL, LARGE).cheapest(busy(*two), two) == (2.0, 0.1, {"small": 2})


def test_machines_that_cost_as_much_as_the_node_are_no_choice():
    four = [trial(name) for name in "wxyz"]
    assert market(SMALL, LARGE).cheapest(busy(*four), four) is None


def test_more_machines_than_the_cluster_may_get_are_no_choice():
    two = [trial("x"), trial("y")]
    assert market(SMALL, room=1).cheapest(busy(*two), two) is None


def test_on_a_slower_machine_the_rest_takes_longer():
    slow = node_type("slow", {"CPU": 2}, price_per_hour=1.0, max_nodes=9, speed=0.5)
    assert market(slow).cheapest(busy(trial()), [trial()]) == (2.0, 0.05, {"slow": 1})


def test_the_dearest_room_is_counted_on():
    rooms = {"cheap": room(end_s=1e9), "dear": room(end_s=0.0, worth=0.0)}
    found = emptied(busy(trial()), rooms, fitting_rooms(rooms, [trial().shape]), market(SMALL))
    assert found is not None
    assert (found.targets, found.must_wait, found.keeps_dear) == (frozenset({"dear"}), False, True)


def test_a_room_on_its_way_is_used_when_no_node_that_is_up_has_any():
    rooms = {"full": room(free=EMPTY), "coming": room(end_s=0.0, worth=0.0, price=1.0, is_up=False)}
    found = emptied(busy(trial()), rooms, fitting_rooms(rooms, [trial().shape]), market(SMALL))
    assert found is not None
    assert (found.targets, found.must_wait, found.machines) == (frozenset({"coming"}), True, {})
