"""A checked transition table."""

from __future__ import annotations

from enum import Enum

import pytest
from tests.mistakes.views import assert_line

from muster.base.state_machine import StateMachine
from muster.errors import InvalidTransition


class Light(Enum):
    OFF = 0
    ON = 1
    BROKEN = 2


LIGHTS = StateMachine("light", {Light.OFF: [Light.ON], Light.ON: [Light.OFF, Light.BROKEN], Light.BROKEN: []})


def test_only_listed_edges_are_allowed():
    allowed = {(a, b) for a in Light for b in Light if LIGHTS.allows(a, b)}
    assert allowed == {(Light.OFF, Light.ON), (Light.ON, Light.OFF), (Light.ON, Light.BROKEN)}


def test_check_raises_with_entity_and_story():
    LIGHTS.check("lamp 3", Light.OFF, Light.ON)
    with pytest.raises(InvalidTransition) as caught:
        LIGHTS.check("lamp 3", Light.BROKEN, Light.ON, ["OFF", "ON", "BROKEN"])
    error = caught.value
    assert (error.entity, error.source, error.target) == ("lamp 3", "BROKEN", "ON")
    assert error.history == ("OFF", "ON", "BROKEN")
    assert_line("cluster", "InvalidTransition", str(error))


def test_a_state_reaches_itself_only_through_a_loop():
    assert LIGHTS.reachable(Light.OFF) == {Light.OFF, Light.ON, Light.BROKEN}
    assert LIGHTS.reachable(Light.BROKEN) == frozenset()


def test_can_reach_includes_the_target():
    assert LIGHTS.can_reach(Light.BROKEN) == set(Light)
    assert LIGHTS.can_reach(Light.OFF) == {Light.OFF, Light.ON}


@pytest.mark.parametrize("edges", [{1: [1]}, {1: [2]}])
def test_a_table_with_self_loops_or_unknown_states_cannot_be_built(edges):
    with pytest.raises(ValueError, match="odd"):
        StateMachine("odd", edges)


def test_a_source_nobody_knows_allows_nothing():
    assert not LIGHTS.allows("nowhere", Light.ON)
