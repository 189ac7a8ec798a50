"""The instance states against spec 1.2 (IU-1 to IU-6 of 8.1), written down again from the specification."""

from __future__ import annotations

import pytest
from tests.support.builders import instance

from muster.cluster.model import Instance, StatusChange
from muster.cluster.states import (
    CREATABLE,
    INSTANCE_MACHINE,
    ON_CLOUD,
    PENDING,
    RUNNING,
    RUNNING_REACHABLE,
    TERMINAL,
    InstanceState,
)
from muster.errors import InvalidTransition

S = InstanceState

# Spec 1.2, row by row.
REFERENCE = {
    "QUEUED": "REQUESTED TERMINATED",
    "REQUESTED": "ALLOCATED QUEUED ALLOCATION_FAILED",
    "ALLOCATED": "RAY_INSTALLING RAY_RUNNING ALLOCATION_TIMEOUT RAY_STOPPING RAY_STOPPED "
    "TERMINATING TERMINATED",
    "RAY_INSTALLING": "RAY_RUNNING RAY_INSTALL_FAILED RAY_STOPPED TERMINATING TERMINATED",
    "RAY_RUNNING": "RAY_STOP_REQUESTED RAY_STOPPING RAY_STOPPED TERMINATING TERMINATED",
    "RAY_STOP_REQUESTED": "RAY_STOPPING RAY_STOPPED RAY_RUNNING TERMINATED",
    "ALLOCATION_TIMEOUT": "TERMINATING TERMINATED",
    "RAY_STOPPING": "RAY_STOPPED TERMINATING TERMINATED",
    "RAY_STOPPED": "TERMINATING TERMINATED",
    "TERMINATING": "TERMINATED TERMINATION_FAILED",
    "TERMINATION_FAILED": "TERMINATING TERMINATED",
    "RAY_INSTALL_FAILED": "TERMINATING TERMINATED",
    "TERMINATED": "",
    "ALLOCATION_FAILED": "",
    "UNKNOWN": "",
}
EXTENSIONS = {("RAY_INSTALLING", "RAY_STOPPING")}  # W5

NUMBERS = [
    "UNKNOWN",
    "QUEUED",
    "REQUESTED",
    "ALLOCATED",
    "RAY_INSTALLING",
    "RAY_RUNNING",
    "RAY_STOP_REQUESTED",
    "RAY_STOPPING",
    "RAY_STOPPED",
    "TERMINATING",
    "TERMINATED",
    "ALLOCATION_FAILED",
    "RAY_INSTALL_FAILED",
    "TERMINATION_FAILED",
    "ALLOCATION_TIMEOUT",
]


def names(states):
    return {state.name for state in states}


def test_the_wire_numbers_are_rays():
    assert {state.value: state.name for state in S} == dict(enumerate(NUMBERS))


def test_iu1_a_new_record_may_be_requested_and_nothing_else():
    INSTANCE_MACHINE.check("i-1", S.QUEUED, S.REQUESTED)
    for target in (S.RAY_RUNNING, S.UNKNOWN):
        with pytest.raises(InvalidTransition, match=f"i-1.*REQUESTED.*{target.name}"):
            INSTANCE_MACHINE.check("i-1", S.REQUESTED, target)


def test_iu2_the_table_is_the_specifications_plus_the_one_extension():
    edges = {(source.name, target.name) for source in S for target in INSTANCE_MACHINE.edges[source]}
    reference = {(source, target) for source, targets in REFERENCE.items() for target in targets.split()}
    assert set(REFERENCE) == names(S) == names(INSTANCE_MACHINE.edges)
    assert edges - reference == EXTENSIONS
    assert reference - edges == set()
    assert len(edges) == 40


@pytest.mark.parametrize("state", list(S))
def test_iu2_no_state_follows_itself(state):
    assert not INSTANCE_MACHINE.allows(state, state)


HISTORY = (
    StatusChange(S.QUEUED, 1.0, "wanted"),
    StatusChange(S.REQUESTED, 2.0, "asked"),
    StatusChange(S.QUEUED, 3.0, "again"),
    StatusChange(S.REQUESTED, 4.0, "asked again"),
)


def test_iu3_times_by_state_are_oldest_first_and_empty_when_never_entered():
    record = instance("i-1", S.REQUESTED, history=HISTORY)
    assert record.entered(S.REQUESTED) == (2.0, 4.0)
    assert record.entered(S.QUEUED) == (1.0, 3.0)
    assert record.entered(S.ALLOCATED) == ()
    assert tuple(change.at for change in record.history) == (1.0, 2.0, 3.0, 4.0)


def test_iu4_since_is_the_newest_entry_of_the_current_state():
    assert instance("i-1", S.REQUESTED, history=HISTORY).since == 4.0
    assert instance("i-1", S.QUEUED, history=HISTORY).since == 3.0
    assert instance("i-1", S.REQUESTED, history=HISTORY).details == "asked again"


def test_iu4_a_history_that_does_not_say_is_as_old_as_can_be():
    assert instance("i-1", S.ALLOCATED, history=HISTORY).since == float("-inf")
    empty = Instance(instance_id="i-1", node_type="cpu", state=S.QUEUED)
    assert (empty.since, empty.details) == (float("-inf"), "")


def test_iu5_the_state_sets_are_the_specifications():
    """The reference's predicates raise on UNKNOWN; ours are sets, and UNKNOWN is in none of them."""
    assert names(RUNNING_REACHABLE) == {
        "QUEUED",
        "REQUESTED",
        "ALLOCATED",
        "RAY_INSTALLING",
        "RAY_RUNNING",
        "RAY_STOP_REQUESTED",
    }
    assert names(PENDING) == {"QUEUED", "REQUESTED", "ALLOCATED", "RAY_INSTALLING"}
    assert names(RUNNING) == {"RAY_RUNNING", "RAY_STOP_REQUESTED", "RAY_STOPPING"}
    assert names(ON_CLOUD) == {
        "ALLOCATED",
        "RAY_INSTALLING",
        "RAY_RUNNING",
        "RAY_STOP_REQUESTED",
        "RAY_STOPPING",
        "RAY_STOPPED",
        "TERMINATING",
        "RAY_INSTALL_FAILED",
        "TERMINATION_FAILED",
        "ALLOCATION_TIMEOUT",
    }
    assert names(TERMINAL) == {"TERMINATED", "ALLOCATION_FAILED"}
    assert names(CREATABLE) == {"QUEUED", "ALLOCATED", "TERMINATING"}
    assert S.UNKNOWN not in RUNNING_REACHABLE | PENDING | RUNNING | ON_CLOUD | TERMINAL | CREATABLE


_GOING = {"TERMINATING", "TERMINATION_FAILED", "TERMINATED"}
_DRAINED = {"RAY_STOPPING", "RAY_STOPPED", *_GOING}
_SERVING = {"RAY_RUNNING", "RAY_STOP_REQUESTED", *_DRAINED}
_BOUND = {"RAY_INSTALLING", "RAY_INSTALL_FAILED", "ALLOCATION_TIMEOUT", *_SERVING}
_ASKED = {"QUEUED", "REQUESTED", "ALLOCATED", "ALLOCATION_FAILED", *_BOUND}


@pytest.mark.parametrize(
    ("state", "reachable"),
    [
        (S.QUEUED, _ASKED),  # REQUESTED and QUEUED form a loop
        (S.REQUESTED, _ASKED),
        (S.ALLOCATED, _BOUND),
        (S.RAY_INSTALLING, {"RAY_INSTALL_FAILED", *_SERVING}),
        (S.RAY_RUNNING, _SERVING),  # RAY_STOP_REQUESTED and RAY_RUNNING form a loop
        (S.RAY_STOP_REQUESTED, _SERVING),
        (S.RAY_STOPPING, {"RAY_STOPPED", *_GOING}),
        (S.RAY_STOPPED, _GOING),
        (S.TERMINATING, _GOING),  # TERMINATING and TERMINATION_FAILED form a loop
        (S.TERMINATION_FAILED, _GOING),
        (S.ALLOCATION_TIMEOUT, _GOING),
        (S.RAY_INSTALL_FAILED, _GOING),
        (S.TERMINATED, set()),
        (S.ALLOCATION_FAILED, set()),
        (S.UNKNOWN, set()),
    ],
)
def test_iu6_what_can_follow_a_state_loops_included(state, reachable):
    assert names(INSTANCE_MACHINE.reachable(state)) == reachable
