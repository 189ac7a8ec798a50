"""Types are checked at the border, one thing at a time."""

from __future__ import annotations

import pytest
from tests.cluster.worlds import machine, node
from tests.support.builders import demand, gang

from muster.base.resources import Resources
from muster.cluster.model import Constraint, NodeReport, NodeStatus
from muster.cluster.validate import (
    bare_node,
    is_sound_constraint,
    is_sound_demand,
    is_sound_gang,
    is_sound_machine,
    is_sound_node,
)

NEGATIVE = Resources({"CPU": -1})


def test_what_is_what_it_says_is_sound():
    assert is_sound_machine("c-a", machine("a"))
    assert is_sound_node(node("a"))
    assert is_sound_demand(demand())
    assert is_sound_gang(gang())
    assert is_sound_constraint(Constraint(demands=(demand(),)))


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("c-b", machine("a")),
        ("", machine("")),
        (None, machine("a")),
        ("c-a", None),
        ("c-a", machine("a", kind="head")),
        ("c-a", machine("a", node_type=None)),
        ("c-a", machine("a", zone=None)),
        ("c-a", machine("a", market=7)),
    ],
)
def test_unsound_machines(key, item):
    assert not is_sound_machine(key, item)


@pytest.mark.parametrize(
    "item",
    [
        None,
        {},
        NodeReport(node_id=None),
        NodeReport(node_id="n", status=1),
        NodeReport(node_id="n", total=None),
        NodeReport(node_id="n", available=NEGATIVE),
        NodeReport(node_id="n", idle_s=None),
    ],
)
def test_unsound_nodes(item):
    assert not is_sound_node(item)


@pytest.mark.parametrize(
    "item",
    [None, demand(count=None), demand(count=1.5), demand(NEGATIVE), demand(shape=Resources({"CPU": None}))],
)
def test_unsound_demands_also_inside_gangs_and_constraints(item):
    assert not is_sound_demand(item)
    assert not is_sound_gang(gang(options=((item,),)))
    assert not is_sound_constraint(Constraint(demands=(item,)))


def test_absurd_counts_are_sound_types_and_left_to_the_rules():
    assert is_sound_demand(demand(count=-1))
    assert is_sound_demand(demand(count=10**12))


def test_what_is_left_of_a_node_that_makes_no_sense_is_its_name():
    assert bare_node(node("a", total=None)) == NodeReport(node_id="n-a", status=NodeStatus.UNSPECIFIED)
