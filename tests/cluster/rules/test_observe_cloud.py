"""Machines and records: who gets which machine, which refusal fails whom, what is late and what is gone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD,
    HEAD_MACHINE,
    HEAD_NODE,
    S,
    after,
    created,
    following,
    machine,
    node,
    past,
    record,
    spec,
    tick,
    trail,
    unchanged,
    unreported,
    world,
)
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, node_type

from muster.cluster.model import FailureKind, LaunchFailure, NodeKind, NodeStatus, TerminateFailure, Timeouts
from muster.cluster.plan import Reason
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory


def refusal(request="r-1", name="cpu", kind=FailureKind.CAPACITY, message="no"):
    return LaunchFailure(request_id=request, node_type=name, kind=kind, message=message)


def test_w25_a_tagged_machine_goes_to_its_own_request_and_not_to_the_oldest():
    seen = world(
        [
            record("old", S.REQUESTED, since=NOW - 50, launch_request_id="r-1"),
            record("new", S.REQUESTED, since=NOW - 5, launch_request_id="r-2"),
        ],
        machines=[machine("x", request_id="r-2")],
    )
    states, plan = tick(seen)
    assert states == {"old": "REQUESTED", "new": "ALLOCATED"}
    assert after(seen, plan)["new"].cloud_id == "c-x"


def test_w25_machines_without_a_tag_go_by_type_to_the_oldest_request():
    seen = world(
        [
            record("new", S.REQUESTED, since=NOW - 5, launch_request_id="r-2"),
            record("old", S.REQUESTED, since=NOW - 50, launch_request_id="r-1"),
            record("gpu", S.REQUESTED, since=NOW - 99, node_type="gpu"),
        ],
        machines=[machine("x"), machine("y")],
        spec=spec(node_type("cpu"), node_type("gpu")),
    )
    _, plan = tick(seen)
    end = after(seen, plan)
    assert (end["old"].cloud_id, end["new"].cloud_id, end["gpu"].cloud_id) == ("c-x", "c-y", None)


def test_a_tagged_machine_of_another_type_is_what_its_request_asked_for():
    """Its type tag was changed: it must not be given to r-1, nor r-2 be repeated."""
    seen = world(
        [
            record("a", S.REQUESTED, launch_request_id="r-1"),
            record("b", S.REQUESTED, launch_request_id="r-2", node_type="gpu"),
        ],
        machines=[machine("x", request_id="r-2")],
        spec=spec(node_type("cpu"), node_type("gpu")),
    )
    states, plan = tick(seen)
    assert (states["a"], states["b"]) == ("REQUESTED", "ALLOCATED")
    assert (after(seen, plan)["b"].cloud_id, after(seen, plan)["b"].node_type) == ("c-x", "gpu")
    assert [note.source for note in plan.quarantined] == ["machine c-x"]


def test_a_machine_tagged_by_a_request_nobody_waits_for_serves_by_type():
    seen = world([record("a", S.REQUESTED)], machines=[machine("x", request_id="r-long-gone")])
    states, plan = tick(seen)
    assert states == {"a": "ALLOCATED"}
    assert after(seen, plan)["a"].cloud_id == "c-x"


def test_machines_of_any_attempt_belong_to_the_record():
    twice = past((S.REQUESTED, 1), (S.QUEUED, 2), (S.REQUESTED, NOW))
    for tag in ("r-1", "r-1~2.t-0"):
        seen = world([record("a", S.REQUESTED, history=twice)], machines=[machine("x", request_id=tag)])
        assert tick(seen)[0] == {"a": "ALLOCATED"}


def test_binding_copies_what_the_machine_is():
    seen = world(
        [record("a", S.REQUESTED, launch_hash="wished", price_per_hour=1.0)],
        machines=[machine("x", launch_hash="made", internal_ip="10.0.0.1", external_ip="1.2.3.4")],
    )
    bound = after(seen, reconcile(seen))["a"]
    assert (bound.launch_hash, bound.internal_ip, bound.external_ip) == ("made", "10.0.0.1", "1.2.3.4")
    assert (bound.price_per_hour, bound.kind) == (1.0, NodeKind.WORKER)


def test_five_requested_one_refused_and_four_arrive():
    """Each refused unit fails exactly one record; nobody is left over, nothing is adopted."""
    five = [record(f"w{i}", S.REQUESTED, since=NOW - 9 + i) for i in range(5)]
    seen = world(five, launch_failures=(refusal(),))
    states, plan = tick(seen)
    assert sorted(states.values()) == ["ALLOCATION_FAILED"] + ["REQUESTED"] * 4
    four = {f"c-{i}": machine(str(i), request_id="r-1") for i in range(4)}
    later = following(seen, plan, cloud={**seen.cloud, **four})
    states, plan = tick(later)
    assert sorted(states.values()) == ["ALLOCATED"] * 4
    assert created(later, plan) == []


def test_a_machine_wins_over_a_refusal_and_the_refusal_takes_the_next():
    seen = world(
        [record("a", S.REQUESTED, since=NOW - 9), record("b", S.REQUESTED, since=NOW - 8)],
        machines=[machine("x", request_id="r-1")],
        launch_failures=(refusal(),),
    )
    assert tick(seen)[0] == {"a": "ALLOCATED", "b": "ALLOCATION_FAILED"}


def test_more_refusals_than_records_fail_all_of_them_and_no_others():
    seen = world(
        [record("a", S.REQUESTED), record("b", S.REQUESTED, launch_request_id="r-2")],
        launch_failures=(refusal(), refusal(), refusal()),
    )
    assert tick(seen)[0] == {"a": "ALLOCATION_FAILED", "b": "REQUESTED"}


def test_a_late_refusal_of_an_earlier_attempt_does_not_fail_the_one_under_way():
    twice = past((S.REQUESTED, 1), (S.QUEUED, 2), (S.REQUESTED, NOW))
    seen = world([record("a", S.REQUESTED, history=twice)], launch_failures=(refusal("r-1"),))
    assert tick(seen)[0] == {"a": "REQUESTED"}
    seen = world([record("a", S.REQUESTED, history=twice)], launch_failures=(refusal("r-1~2.t-0"),))
    assert tick(seen)[0] == {"a": "ALLOCATION_FAILED"}


def test_several_refusals_in_one_tick_are_one_step_of_back_off():
    seen = world([record("a", S.REQUESTED)], launch_failures=tuple(refusal(message=m) for m in "xyz"))
    health = reconcile(seen).memory.health["cpu"]
    assert (health.failures, health.blocked_until, health.message) == (1.0, NOW + 5.0, "z")


def test_a_machine_that_arrives_late_is_adopted_and_serves_the_next_wish():
    """The record failed long ago; its machine is not launched twice."""
    seen = world(machines=[machine("late", request_id="r-1")], demands=[])
    _states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.state, new.cloud_id, plan.actions) == (S.ALLOCATED, "c-late", ())
    assert_line("cluster", "adopted machine", new.details)


def test_adoption_takes_price_and_hash_of_the_type_unless_the_machine_says_otherwise():
    priced = spec(node_type("cpu", price_per_hour=2.5, launch_hash="today"))
    seen = world(machines=[machine("a"), machine("b", launch_hash="tagged")], spec=priced)
    first, second = created(seen, reconcile(seen))
    assert (first.price_per_hour, first.launch_hash) == (2.5, "today")
    assert (second.price_per_hour, second.launch_hash) == (2.5, "tagged")


# Lists are eventually consistent.


def test_a_machine_missing_from_one_list_whose_node_lives_is_waited_for():
    seen = world([record("a", S.RAY_RUNNING)], machines=[], nodes=[node("a")])
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING"}
    assert after(seen, plan)["a"].missing_since == NOW
    back = following(seen, plan, cloud={**seen.cloud, "c-a": machine("a")})
    plan = reconcile(back)
    assert after(back, plan)["a"].missing_since is None


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_INSTALLING])
def test_the_wait_for_a_booting_machine_ends_strictly_after_the_grace(state):
    waiting = record("a", state, missing_since=NOW - 30.0)
    assert tick(world([waiting], machines=[]))[0] == {"a": state.name}
    waiting = replace(waiting, missing_since=NOW - 30.1)
    assert tick(world([waiting], machines=[]))[0] == {"a": "TERMINATING"}


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RAY_INSTALLING])
def test_no_record_of_a_booting_machine_ends_without_a_terminate(state):
    """Only the lists may be wrong: then the machine would run on beside the one that replaces it."""
    seen = world([record("a", state, missing_since=0.0)], machines=[])
    _, plan = tick(seen)
    assert trail(seen, plan, "a") == ["RAY_STOPPED", "TERMINATING"]
    assert [action.cloud_ids for action in plan.actions] == [("c-a",)]
    assert_line("cluster", "machine no longer listed", after(seen, plan)["a"].loss.details)
    assert tick(following(seen, plan))[0] == {"a": "TERMINATED"}


@pytest.mark.parametrize(
    "waiting",
    [
        record("a", S.ALLOCATED),
        record("a", S.RAY_INSTALLING),
        record("a", S.TERMINATING),
        record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW),
    ],
)
def test_time_in_which_nobody_looked_is_not_time_in_which_a_machine_was_missing(waiting):
    """Lists lacked it, the controller was down for a while, and the first list after that lacks it again.

    The terminate of the third was written down before the controller ended, and is sent after this tick.
    """
    seen = world([waiting], machines=[], nodes=[], unheard_terminates=frozenset({"a"}))
    for seconds in (5.0, 600.0, 5.0):
        states, plan = tick(seen)
        assert states["a"] not in ("TERMINATED", *([] if waiting.state is S.TERMINATING else ["TERMINATING"]))
        seen = following(seen, plan, seconds=seconds)
    assert tick(seen)[0]["a"] in ("TERMINATED", "TERMINATING")
    assert seen.memory.listed_at == seen.now - 5.0


def test_a_node_that_came_for_a_request_is_not_let_go_because_the_clock_was_set():
    """Its machine is listed late; after a restart the clock is far ahead, and all waits seem long."""
    taken = record("a", S.RAY_RUNNING, launch_request_id="r-1", provisional=True, missing_since=NOW)
    seen = world([taken], machines=[], nodes=[node("a")])
    later = following(seen, reconcile(seen), seconds=86400.0)
    assert tick(later)[0] == {"a": "RAY_RUNNING"}


def test_a_machine_that_lists_lack_while_its_node_lives_is_written_down_once():
    seen = world([record("a", S.RAY_RUNNING)], machines=[], nodes=[node("a")])
    assert unchanged(reconcile(following(seen, reconcile(seen))))
    assert reconcile(seen).memory.listed_at is None


@pytest.mark.parametrize("status", [NodeStatus.RUNNING, NodeStatus.IDLE, NodeStatus.DRAINING])
def test_a_machine_whose_node_lives_is_never_taken_for_gone(status):
    waiting = record("a", S.RAY_RUNNING, missing_since=0.0)
    seen = world([waiting], machines=[], nodes=[node("a", status)])
    assert tick(seen)[0]["a"] in ("RAY_RUNNING", "RAY_STOPPING")


def test_a_node_that_has_just_come_shows_that_its_missing_machine_exists():
    waiting = record("a", S.ALLOCATED, missing_since=0.0)
    assert tick(world([waiting], machines=[], nodes=[node("a")]))[0] == {"a": "RAY_RUNNING"}


def test_without_grace_a_missing_machine_is_gone_at_once():
    hasty = spec(timeouts=Timeouts(listing_grace_s=0.0))
    seen = world([record("a", S.ALLOCATED)], machines=[], spec=hasty)
    assert tick(seen)[0] == {"a": "TERMINATING"}


@pytest.mark.parametrize("nodes", [[], [node("a", NodeStatus.DEAD)]])
def test_a_missing_machine_whose_node_does_not_live_is_terminated_and_then_gone(nodes):
    """Only the list may be wrong: then the machine would run on, and be paid for."""
    seen = world([record("a", S.RAY_RUNNING)], machines=[], nodes=nodes, memory=unreported("a"))
    states, plan = tick(seen)
    if nodes:  # the next report may show another node on it
        assert states == {"a": "RAY_STOPPED"}
        seen = following(seen, plan)
        states, plan = tick(seen)
    assert states == {"a": "TERMINATING"}
    node_state = "dead" if nodes else "missing"
    assert_line("cluster", f"machine no longer listed, node {node_state}", after(seen, plan)["a"].details)
    assert [action.cloud_ids for action in plan.actions] == [("c-a",)]
    later = following(seen, plan)
    assert tick(later)[0] == {"a": "TERMINATED"}


def test_without_a_report_no_running_machine_is_given_up():
    """Its node may live; nothing may be concluded from not having looked."""
    seen = replace(world([record("a", S.RAY_RUNNING, missing_since=0.0)], machines=[]), runtime=None)
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


def test_a_machine_that_is_listed_again_after_it_was_given_back_is_given_back_again():
    """The list lacked it once, or the call was lost: adopted as new it would be paid for until a timeout."""
    seen = world([record("a", S.TERMINATING)], machines=[])
    states, plan = tick(seen)
    assert (states, plan.memory.ended_machines) == ({"a": "TERMINATED"}, {"c-a": NOW})
    back = following(seen, plan, cloud={**seen.cloud, "c-a": machine("a")})
    plan = reconcile(back)
    assert [(r.cloud_id, r.state) for r in plan.writes] == [("c-a", S.TERMINATING)]
    assert [action.cloud_ids for action in plan.actions] == [("c-a",)]


def test_a_machine_that_is_being_terminated_and_whose_node_lives_is_not_gone_yet():
    leaving = record("a", S.TERMINATING, node_id="n-a")
    assert tick(world([leaving], machines=[], nodes=[node("a", NodeStatus.DRAINING)]))[0] == {
        "a": "TERMINATING"
    }
    assert tick(replace(world([leaving], machines=[]), runtime=None))[0] == {"a": "TERMINATED"}


def test_a_machine_that_came_back_while_it_drains_is_ended_when_the_drain_is_past_its_deadline():
    memory = Memory(ended_machines={"c-a": NOW})
    seen = world(machines=[machine("a")], nodes=[node("a", NodeStatus.DRAINING)], memory=memory)
    plan = reconcile(seen)
    (back,) = plan.writes
    assert back.state is S.RAY_STOPPING
    late = following(seen, plan, seconds=961.0)
    assert after(late, reconcile(late))[back.instance_id].state is S.TERMINATING


def test_a_machine_that_came_back_with_a_node_or_long_after_is_adopted():
    for memory, nodes, state in (
        ({"c-a": NOW}, [node("a")], S.RAY_RUNNING),
        ({"c-a": NOW - 301.0}, [], S.ALLOCATED),
    ):
        seen = world(machines=[machine("a")], nodes=nodes, memory=Memory(ended_machines=memory))
        plan = reconcile(seen)
        assert ([r.state for r in plan.writes], plan.actions) == ([state], ())


def test_an_id_that_is_used_again_for_a_new_request_is_a_new_machine():
    seen = world(
        [record("b", S.REQUESTED)],
        machines=[machine("a", request_id="r-1")],
        memory=Memory(ended_machines={"c-a": NOW - 5.0}),
    )
    assert tick(seen)[0] == {"b": "ALLOCATED"}
    older = replace(seen, memory=Memory(ended_machines={"c-a": NOW + 1.0}))
    assert tick(older)[0]["b"] == "REQUESTED"  # the machine was released after this was asked for


@pytest.mark.parametrize(("tag", "state"), [("r-1", "ALLOCATED"), ("r-0", "REQUESTED")])
def test_a_machine_that_was_stopped_answers_a_request_of_the_tick_that_saw_it_end_by_its_tag(tag, state):
    """A cache of stopped machines starts it for that request at once: it is listed in the next tick."""
    seen = world(
        [record("b", S.REQUESTED, since=NOW - 5.0)],
        machines=[machine("a", request_id=tag)],
        nodes=[],
        memory=Memory(ended_machines={"c-a": NOW - 5.0}),
    )
    assert tick(seen)[0]["b"] == state


def test_a_machine_that_came_while_its_request_waits_to_be_repeated_is_not_bought_again():
    again = past((S.REQUESTED, 1), (S.QUEUED, 2))
    for tag in ("r-1", None):
        waiting = record("q", S.QUEUED, history=again, launch_request_id="r-1")
        seen = world([waiting], machines=[machine("x", request_id=tag)])
        states, plan = tick(seen)
        (new,) = created(seen, plan)
        assert (states["q"], new.state, new.launch_request_id) == ("TERMINATED", S.ALLOCATED, "r-1")
        assert plan.actions == ()


def test_a_node_that_was_taken_for_another_machines_answers_the_request_to_be_repeated():
    """Two machines for two requests; the node of the one came first, the list shows the other first."""
    taken = record("taken", S.RAY_RUNNING, launch_request_id="r-2", provisional=True, missing_since=NOW - 20)
    seen = world(
        [taken, record("late", S.QUEUED, launch_request_id="r-1")],
        machines=[machine("y", request_id="r-2")],
        nodes=[node("taken")],
    )
    states, plan = tick(seen)
    end = after(seen, plan)
    assert states["late"] == "TERMINATED"
    assert end["taken"].launch_request_id == "r-1"
    assert [one.launch_request_id for one in end.values() if one.cloud_id == "c-y"] == ["r-2"]


def test_a_node_that_restarts_on_a_machine_which_no_list_has_shown_answers_the_next_request():
    gone = record("gone", S.RAY_STOPPED, launch_request_id="r-1", provisional=True, missing_since=0.0)
    seen = world([gone, record("next", S.REQUESTED, launch_request_id="r-2")], machines=[])
    states, plan = tick(seen)
    assert states["gone"] == "TERMINATED"
    seen = replace(following(seen, plan), runtime=world([], nodes=[node("new", cloud_id="c-gone")]).runtime)
    states, plan = tick(seen)
    assert (states["next"], after(seen, plan)["next"].cloud_id) == ("RAY_RUNNING", "c-gone")


def test_the_head_is_waited_for_as_long_as_its_node_lives():
    old = replace(HEAD, missing_since=0.0)
    seen = world([old], machines=[], nodes=[HEAD_NODE], head=False)
    assert unchanged(reconcile(seen))
    dead = world([old], machines=[], nodes=[replace(HEAD_NODE, status=NodeStatus.DEAD)], head=False)
    plan = reconcile(dead)
    assert after(dead, plan)["head"].state is S.TERMINATED
    assert plan.actions == ()


@pytest.mark.parametrize("state", [S.TERMINATING, S.TERMINATION_FAILED])
def test_machines_that_were_given_back_are_gone_when_they_are_not_listed(state):
    assert tick(world([record("a", state)], machines=[]))[0] == {"a": "TERMINATED"}


def test_a_machine_is_not_gone_by_a_terminate_that_the_provider_has_not_heard():
    seen = world([record("a", S.TERMINATING)], machines=[], unheard_terminates=frozenset({"a"}))
    states, plan = tick(seen)
    assert (states, after(seen, plan)["a"].missing_since) == ({"a": "TERMINATING"}, NOW)
    for since, state in ((NOW - 60.0, "TERMINATED"), (NOW - 5.0, "TERMINATING")):
        missing = record("a", S.TERMINATING, since=since, missing_since=NOW - 60.0)
        later = world([missing], machines=[], unheard_terminates=frozenset({"a"}))
        assert tick(later)[0] == {"a": state}  # a provider that cannot be called is not waited for


def test_a_provider_that_refuses_to_terminate_a_machine_for_ever_does_not_keep_its_record():
    """A machine that is gone is not known to it any more: every refusal starts another attempt."""
    again = past((S.TERMINATING, NOW - 60.0), (S.TERMINATION_FAILED, NOW - 5.0), (S.TERMINATING, NOW - 5.0))
    refused = record("a", S.TERMINATING, history=again, missing_since=NOW - 40.0)
    assert tick(world([refused], machines=[], unheard_terminates=frozenset({"a"})))[0] == {"a": "TERMINATED"}


def test_requests_and_wishes_are_not_ended_by_a_list():
    seen = world([record("r", S.REQUESTED), record("q", S.QUEUED)], machines=[])
    assert tick(seen)[0] == {"r": "REQUESTED", "q": "REQUESTED"}


# Terminations that did not work.


def test_a_refused_termination_counts_only_while_terminating():
    failure = TerminateFailure(cloud_id="c-a", kind=FailureKind.PERMISSION, message="denied")
    seen = world([record("a", S.RAY_RUNNING)], terminate_failures=(failure,))
    assert unchanged(reconcile(seen))
    seen = world([record("a", S.TERMINATING)], terminate_failures=(failure, failure))
    end = after(seen, reconcile(seen))["a"]
    assert [c.state.name for c in end.history] == ["TERMINATING", "TERMINATION_FAILED", "TERMINATING"]
    assert end.history[1].details.split(": ") == [FailureKind.PERMISSION.value, "denied"]


def test_a_gone_machine_is_terminated_whatever_the_provider_said_before():
    failure = TerminateFailure(cloud_id="c-a")
    seen = world([record("a", S.TERMINATING)], machines=[], terminate_failures=(failure,))
    assert tick(seen)[0] == {"a": "TERMINATED"}


def test_failures_are_heard_also_when_the_list_cannot_be_read():
    """They are told once: a tick that forgets them would wait for a timeout instead."""
    seen = replace(
        world(
            [record("a", S.REQUESTED), record("b", S.TERMINATING)],
            launch_failures=(refusal(),),
            terminate_failures=(TerminateFailure(cloud_id="c-b"),),
        ),
        cloud=None,
    )
    states, plan = tick(seen)
    assert states["a"] == "ALLOCATION_FAILED"
    assert [c.state.name for c in after(seen, plan)["b"].history[1:]] == ["TERMINATION_FAILED", "TERMINATING"]
    assert Reason.CLOUD_UNREADABLE in {v.reason for v in plan.verdicts}


def test_the_head_found_in_the_list_is_adopted_as_head():
    seen = world([], machines=[HEAD_MACHINE], nodes=[HEAD_NODE], head=False)
    (head,) = reconcile(seen).writes
    assert (head.kind, head.state, head.node_id) == (NodeKind.HEAD, S.RAY_RUNNING, "n-head")


def test_a_head_the_provider_takes_for_a_worker_is_known_by_its_node():
    """Otherwise the gate would stay shut, and the head might be released as idle."""
    seen = world([], machines=[replace(HEAD_MACHINE, kind=NodeKind.WORKER)], nodes=[HEAD_NODE], head=False)
    (head,) = reconcile(seen).writes
    assert (head.kind, head.state) == (NodeKind.HEAD, S.RAY_RUNNING)
