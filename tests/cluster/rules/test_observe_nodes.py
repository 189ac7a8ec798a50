"""Nodes and records: running, draining, dead, vanished, restarted."""

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

from muster.cluster.model import DrainFailure, InstallFailure, NodeKind, NodeStatus, StopCause
from muster.cluster.plan import Drain
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits, TypeHealth

DEAD, DRAINING, IDLE, RUNNING = NodeStatus.DEAD, NodeStatus.DRAINING, NodeStatus.IDLE, NodeStatus.RUNNING


@pytest.mark.parametrize(
    ("state", "status", "steps"),
    [
        (S.ALLOCATED, RUNNING, ["RAY_RUNNING"]),
        (S.ALLOCATED, IDLE, ["RAY_RUNNING"]),
        (S.ALLOCATED, DRAINING, ["RAY_STOPPING"]),
        (S.ALLOCATED, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_INSTALLING, RUNNING, ["RAY_RUNNING"]),
        (S.RAY_INSTALLING, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_RUNNING, DRAINING, ["RAY_STOPPING"]),
        (S.RAY_RUNNING, DEAD, ["RAY_STOPPED"]),
        (S.RAY_STOP_REQUESTED, RUNNING, []),
        (S.RAY_STOP_REQUESTED, DRAINING, ["RAY_STOPPING"]),
        (S.RAY_STOP_REQUESTED, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_STOPPING, RUNNING, []),
        (S.RAY_STOPPING, DEAD, ["RAY_STOPPED", "TERMINATING"]),
        (S.RAY_STOPPED, RUNNING, ["TERMINATING"]),
        (S.TERMINATING, RUNNING, []),
        (S.TERMINATING, DEAD, []),
    ],
)
def test_a_record_follows_its_node_and_never_goes_backwards(state, status, steps):
    seen = world([record("a", state, node_id="n-a")], nodes=[node("a", status)])
    assert trail(seen, reconcile(seen), "a") == steps


def test_a_node_is_found_by_its_machine_the_first_time():
    seen = world([record("a", S.ALLOCATED, cloud_id="c-x")], nodes=[node("new", cloud_id="c-x")])
    end = after(seen, reconcile(seen))["a"]
    assert (end.state, end.node_id) == (S.RAY_RUNNING, "n-new")
    assert_line("cluster", "node running", end.details)


def test_read_only_machines_are_named_by_their_nodes():
    seen = world(
        [record("a", S.ALLOCATED, cloud_id="n-a")],
        nodes=[node("a", cloud_id=None)],
        traits=ProviderTraits(read_only=True, lists_nodes=True),
    )
    assert tick(seen)[0] == {"a": "RAY_RUNNING"}


def test_a_provider_that_pauses_does_not_take_nodes_for_its_machines():
    """Found by the simulated RayCluster, seed 272: a suspended one adopted nodes that were joined by hand."""
    seen = world([], nodes=[node("theirs", cloud_id=None)], traits=ProviderTraits(read_only=True))
    assert reconcile(seen).writes == ()


def test_a_second_live_node_on_a_machine_is_set_aside():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[node("a"), node("b", cloud_id="c-a")])
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING"}
    (note,) = plan.quarantined
    assert_line("cluster", "second node on a machine", note.message)
    assert unchanged(plan)


def test_a_dead_node_of_an_earlier_life_says_nothing():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[node("a"), node("older", DEAD, cloud_id="c-a")])
    assert unchanged(reconcile(seen))


def test_a_dead_node_known_to_have_ended_does_not_end_the_next_record():
    """The cloud listed the machine late: its record had ended, and a new one was made."""
    seen = world(
        [record("a", S.ALLOCATED)],
        nodes=[node("old", DEAD, cloud_id="c-a")],
        memory=Memory(ended_nodes={"n-old": 1.0}),
    )
    plan = reconcile(seen)
    assert unchanged(plan)
    assert plan.memory.ended_nodes == {"n-old": 1.0}


def test_a_live_node_known_to_have_ended_is_not_adopted_without_its_machine():
    """Nobody listed its machine for longer than the grace and its record ended: it is somebody's own."""
    waiting = record("a", S.RAY_RUNNING, missing_since=NOW - 31.0, provisional=True)
    seen = world([waiting], machines=[], nodes=[node("a")])
    states, plan = tick(seen)
    assert states == {"a": "TERMINATED"}
    assert plan.memory.ended_nodes == {"n-a": NOW}
    again = following(seen, plan)
    assert created(again, reconcile(again)) == []
    listed = following(again, reconcile(again), cloud={**seen.cloud, "c-a": machine("a")})
    (new,) = created(listed, reconcile(listed))
    assert (new.state, new.node_id) == (S.RAY_RUNNING, "n-a")


def test_ended_nodes_are_forgotten_when_the_runtime_forgets_them():
    seen = world(nodes=[node("a", DEAD)], memory=Memory(ended_nodes={"n-a": 1.0, "n-b": 2.0}))
    assert reconcile(seen).memory.ended_nodes == {"n-a": 1.0}


@pytest.mark.parametrize("state", [S.RAY_RUNNING, S.RAY_STOP_REQUESTED, S.RAY_STOPPING, S.RAY_STOPPED])
def test_a_restarted_runtime_takes_its_machine_over(state):
    """Also when the old node is no longer listed at all. Type, price and hash stay the machine's."""
    old = record("old", state, node_type="gpu", price_per_hour=2.0, launch_hash="h")
    types = spec(node_type("cpu"), node_type("gpu", price_per_hour=9.0, launch_hash="today"))
    seen = world([old], nodes=[node("new", cloud_id="c-old", node_type="")], spec=types)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert states == {"old": "TERMINATED", new.instance_id: "RAY_RUNNING"}
    assert (new.node_type, new.price_per_hour, new.launch_hash) == ("gpu", 2.0, "h")
    assert (new.cloud_id, new.node_id, new.kind) == ("c-old", "n-new", NodeKind.WORKER)
    assert plan.actions == ()


def test_two_restarts_seen_at_once_make_one_record():
    nodes = [node("old", DEAD), node("b", cloud_id="c-old"), node("c", cloud_id="c-old")]
    seen = world([record("old", S.RAY_RUNNING)], nodes=nodes)
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.node_id, states["old"]) == ("n-b", "TERMINATED")
    assert [q.source for q in plan.quarantined] == ["node n-c"]


@pytest.mark.parametrize(
    ("state", "status", "drained"),
    [
        (S.TERMINATING, RUNNING, ["n-new"]),
        (S.TERMINATING, IDLE, ["n-new"]),
        (S.TERMINATING, DRAINING, []),
        (S.TERMINATION_FAILED, RUNNING, []),  # in the tick after it is terminated again
    ],
)
def test_a_new_node_on_a_machine_that_is_leaving_is_not_taken_over_but_drained(state, status, drained):
    """A container that restarts its raylet while its pod is deleted must not get work that dies with it."""
    seen = world([record("a", state, node_id="n-a")], nodes=[node("new", status, cloud_id="c-a")])
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING"}
    assert created(seen, plan) == []
    drains = [action for action in plan.actions if isinstance(action, Drain)]
    assert [(one.node_id, one.may_be_refused) for one in drains] == [(name, False) for name in drained]


def test_the_head_keeps_its_kind_when_its_new_node_does_not_say_so():
    nodes = [node("next", cloud_id="c-head", node_type="head")]
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=nodes, head=False)
    (new,) = created(seen, reconcile(seen))
    assert (new.kind, new.state) == (NodeKind.HEAD, S.RAY_RUNNING)


def test_the_heads_node_may_be_missing_for_a_while():
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=[], head=False)
    assert unchanged(reconcile(seen))


def test_a_head_whose_node_died_closes_the_gate_and_stays():
    nodes = [replace(HEAD_NODE, status=DEAD)]
    seen = world([HEAD], machines=[HEAD_MACHINE], nodes=nodes, head=False)
    plan = reconcile(seen)
    assert after(seen, plan)["head"].state is S.RAY_STOPPED
    assert plan.actions == ()
    assert reconcile(following(seen, plan)).actions == ()


# Nodes whose machines no list shows.


def test_a_node_before_its_machine_is_taken_for_the_oldest_request_of_its_type_until_it_is_listed():
    seen = world(
        [
            record("new", S.REQUESTED, since=NOW - 5, launch_request_id="r-2"),
            record("old", S.REQUESTED, since=NOW - 50, launch_request_id="r-1"),
            record("gpu", S.REQUESTED, since=NOW - 99, node_type="gpu"),
        ],
        nodes=[node("x")],
        spec=spec(node_type("cpu"), node_type("gpu")),
    )
    states, plan = tick(seen)
    assert states == {"new": "REQUESTED", "old": "RAY_RUNNING", "gpu": "REQUESTED"}
    old = after(seen, plan)["old"]
    assert (old.cloud_id, old.node_id, old.provisional, old.missing_since) == ("c-x", "n-x", True, NOW)
    listed = following(seen, plan, cloud={**seen.cloud, "c-x": machine("x", request_id="r-1")})
    old = after(listed, reconcile(listed))["old"]
    assert (old.provisional, old.missing_since) == (False, None)


def test_a_node_on_a_machine_that_was_given_up_a_moment_ago_answers_no_request():
    seen = world([record("a", S.REQUESTED)], nodes=[node("x")], memory=Memory(ended_machines={"c-x": NOW}))
    assert tick(seen)[0]["a"] == "REQUESTED"


@pytest.mark.parametrize("tag", ["r-1", None])
def test_the_requests_own_machine_takes_it_over_from_a_node_that_was_not_its_own(tag):
    mistaken = record("a", S.RAY_RUNNING, launch_request_id="r-1", provisional=True, missing_since=NOW - 5.0)
    seen = world([mistaken], machines=[machine("real", request_id=tag)])
    states, plan = tick(seen)
    (new,) = created(seen, plan)
    assert (new.state, new.cloud_id, new.launch_request_id) == (S.ALLOCATED, "c-real", "r-1")
    assert (states["a"], after(seen, plan)["a"].launch_request_id, plan.actions) == ("RAY_RUNNING", None, ())
    foreign = following(seen, plan, seconds=30.0)
    assert tick(foreign)[0]["a"] == "TERMINATED"
    assert reconcile(foreign).actions == ()


def test_a_listed_machine_goes_to_the_request_that_its_tag_names():
    """Its node was taken for the answer to another request, which has its own machine by now, or waits."""
    for theirs, ends in ((None, ("TERMINATED", "RAY_RUNNING")), ("r-9", ("RAY_RUNNING", "REQUESTED"))):
        taken = record(
            "a", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id=theirs
        )
        waits = record("b", S.REQUESTED)
        seen = world([taken, waits], machines=[machine("a", request_id="r-1")])
        states, plan = tick(seen)
        assert ((states["a"], states["b"]), plan.actions) == (ends, ())
        end = after(seen, plan)
        owner = end["b"] if theirs is None else end["a"]
        assert (owner.cloud_id, owner.node_id, owner.launch_request_id) == ("c-a", "n-a", "r-1")
        assert end["b"].launch_request_id == (theirs or "r-1")


def test_a_request_that_changed_places_gets_its_own_machine_in_the_same_tick():
    """Request r-9 also waits for another type: its machine would not be given away by type."""
    taken = record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id="r-9")
    waits = [record("b", S.REQUESTED), record("g", S.REQUESTED, launch_request_id="r-9", node_type="gpu")]
    listed = [machine("a", request_id="r-1"), machine("x", request_id="r-9")]
    seen = world([taken, *waits], machines=listed, spec=spec(node_type("cpu"), node_type("gpu")))
    states, plan = tick(seen)
    assert (states, created(seen, plan)) == ({"a": "RAY_RUNNING", "b": "ALLOCATED", "g": "REQUESTED"}, [])


def test_a_node_whose_request_got_its_own_machine_is_taken_for_the_next_requests_answer():
    """Request r-9 also waits for another type: its machine would not be given away by type."""
    taken = record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id="r-9")
    waits = [record("b", S.REQUESTED), record("g", S.REQUESTED, launch_request_id="r-9", node_type="gpu")]
    types = spec(node_type("cpu"), node_type("gpu"))
    seen = world([taken, *waits], machines=[machine("x", request_id="r-9")], spec=types)
    states, plan = tick(seen)
    assert (states, created(seen, plan)) == ({"a": "RAY_RUNNING", "b": "ALLOCATED", "g": "REQUESTED"}, [])
    end = after(seen, plan)
    assert (end["a"].launch_request_id, end["b"].launch_request_id) == ("r-1", "r-9")


@pytest.mark.parametrize(("request_id", "patience"), [("r-1", 3600.0), (None, 30.0)])
def test_a_node_that_is_never_listed_is_let_go_of_without_a_call(request_id, patience):
    waiting = record("a", S.RAY_RUNNING, provisional=True, launch_request_id=request_id)
    late = [replace(waiting, missing_since=NOW - patience - more) for more in (0.0, 0.1)]
    ends = [tick(world([one], machines=[])) for one in late]
    assert [states["a"] for states, _ in ends] == ["RAY_RUNNING", "TERMINATED"]
    assert [plan.actions for _, plan in ends] == [(), ()]


def test_a_runtime_that_restarts_before_its_machine_is_listed_is_as_provisional_as_before():
    waiting = record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW - 5.0, launch_request_id="r-1")
    seen = world([waiting], machines=[], nodes=[node("a", DEAD), node("b", cloud_id="c-a")])
    (new,) = created(seen, reconcile(seen))
    assert (new.provisional, new.missing_since, new.launch_request_id) == (True, NOW - 5.0, "r-1")


@pytest.mark.parametrize(("cause", "end"), [(None, "RAY_STOPPED"), (StopCause.IDLE, "TERMINATING")])
def test_a_machine_that_lost_its_node_is_kept_while_one_without_an_id_may_run_there(cause, end):
    lost = record("a", S.RAY_RUNNING if cause is None else S.RAY_STOP_REQUESTED, stop_cause=cause)
    new, memory = node("new", cloud_id=None), unreported("a")
    assert tick(world([lost], nodes=[new], memory=memory))[0] == {"a": end}
    missing = replace(lost, missing_since=NOW - 60.0)
    assert tick(world([missing], machines=[], nodes=[new], memory=memory))[0] == {"a": end}
    gone = replace(lost, missing_since=NOW - 301.0)  # no list lacks a machine for so long
    assert tick(world([gone], machines=[], nodes=[new], memory=memory))[0] == {"a": "TERMINATING"}


def test_a_machine_that_was_kept_after_it_lost_its_node_is_not_ended_without_a_report():
    kept = record("a", S.RAY_STOPPED, since=NOW - 5.0)
    assert tick(replace(world([kept]), runtime=None))[0] == {"a": "RAY_STOPPED"}
    assert tick(world([kept], nodes=[]))[0] == {"a": "TERMINATING"}


def test_nothing_of_a_provisional_record_is_drained_or_terminated():
    idle = node("a", IDLE, idle_s=1e6)
    seen = world([record("a", S.RAY_RUNNING, provisional=True, missing_since=NOW)], machines=[], nodes=[idle])
    assert unchanged(reconcile(seen))
    dead = replace(seen, runtime=replace(seen.runtime, nodes=(HEAD_NODE, node("a", DEAD))))
    plan = reconcile(dead)
    assert (trail(dead, plan, "a"), plan.actions) == (["RAY_STOPPED"], ())


def test_a_node_without_a_cloud_id_is_found_by_its_ip():
    for booting in (record("a", S.ALLOCATED, internal_ip="10.0.0.7"), record("a", S.ALLOCATED)):
        listed = [machine("a", internal_ip="10.0.0.7"), machine("b", internal_ip="10.0.0.8")]
        seen = world([booting, record("b", S.ALLOCATED)], machines=listed, nodes=[NAMELESS])
        assert tick(seen)[0] == {"a": "RAY_RUNNING", "b": "ALLOCATED"}


NAMELESS = node("x", cloud_id=None, ip="10.0.0.7")


def test_an_ip_that_several_machines_have_or_another_type_has_matches_nothing():
    pairs = [record(name, S.ALLOCATED, internal_ip="10.0.0.7") for name in "ab"]
    plan = reconcile(world(pairs, nodes=[NAMELESS]))
    assert ([q.source for q in plan.quarantined], plan.writes) == (["node n-x"], ())
    other = record("a", S.ALLOCATED, internal_ip="10.0.0.7", node_type="gpu", launch_request_id="r-1")
    types = spec(node_type("cpu"), node_type("gpu"))
    assert reconcile(world([other], nodes=[NAMELESS], spec=types)).writes == ()


def test_a_dead_node_is_not_matched_by_its_ip():
    """Ips are used again: it died on an earlier machine."""
    booting = record("a", S.ALLOCATED, internal_ip="10.0.0.7")
    assert unchanged(reconcile(world([booting], nodes=[replace(NAMELESS, status=DEAD)])))


@pytest.mark.parametrize("limit", ["allocate", "cancelled"])
@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"cloud_id": None}, False),
        ({"cloud_id": None, "ip": "10.9.9.9"}, False),
        ({"cloud_id": None, "node_type": ""}, False),
        ({"cloud_id": None, "status": NodeStatus.UNSPECIFIED}, False),
        ({"cloud_id": "c-a", "status": NodeStatus.UNSPECIFIED, "ip": "10.9.9.9", "node_type": ""}, False),
        ({"cloud_id": None, "node_type": "", "ip": "10.9.9.9"}, True),
        ({"cloud_id": "c-else", "ip": "10.9.9.9"}, True),
        ({"cloud_id": "c-else"}, False),
        ({"cloud_id": "c-head", "status": NodeStatus.UNSPECIFIED}, False),  # the head has that id
        ({"cloud_id": None, "node_type": "gpu"}, True),
    ],
)
def test_no_machine_is_ended_on_which_an_unmatched_node_may_work(fields, ended, limit):
    since = NOW - 3601.0 if limit == "allocate" else NOW
    booting = record("a", S.ALLOCATED, since=since, cancelled=limit == "cancelled", internal_ip="10.0.0.1")
    seen = world([booting], nodes=[node("x", **fields)], spec=spec(node_type("cpu"), node_type("gpu")))
    assert (tick(seen)[0]["a"] == "TERMINATING") is ended


# What failed to start or to stop.


def test_an_install_failure_counts_only_while_installing():
    seen = world(
        [record("a", S.ALLOCATED)], install_failures=(InstallFailure(instance_id="a", message="late"),)
    )
    assert unchanged(reconcile(seen))


def test_an_installation_said_to_have_failed_whose_node_runs_has_worked():
    """Spec 2.2: nodes (S5) before install failures (S6). The node may be at work already."""
    failure = InstallFailure(instance_id="a", message="ssh: connection reset")
    seen = world([record("a", S.RAY_INSTALLING)], nodes=[node("a")], install_failures=(failure,))
    assert trail(seen, reconcile(seen), "a") == ["RAY_RUNNING"]


def test_an_install_failure_waits_for_a_report_that_shows_whether_its_node_runs():
    """Seeds 2541 and 2792 of the rack: `ray start` ran after the installer had given it up."""
    failure = InstallFailure(instance_id="a", message="no route")
    seen = world([record("a", S.RAY_INSTALLING)], install_failures=(failure,))
    blind = replace(seen, runtime=None)
    assert unchanged(reconcile(blind)) and reconcile(blind).undecided == (failure,)
    plan = reconcile(seen)
    assert (trail(seen, plan, "a"), plan.undecided) == (["RAY_INSTALL_FAILED", "TERMINATING"], ())


def test_an_install_failure_waits_while_the_report_lacks_nodes_that_serve():
    failure = InstallFailure(instance_id="a", message="no route")
    records = [record("a", S.RAY_INSTALLING), record("b", S.RAY_RUNNING)]
    partial = world(records, nodes=[], install_failures=(failure,))
    plan = reconcile(partial)
    assert (trail(partial, plan, "a"), plan.undecided) == ([], (failure,))
    whole = world(records, nodes=[node("b")], install_failures=(failure,))
    assert trail(whole, reconcile(whole), "a")[0] == "RAY_INSTALL_FAILED"


def test_an_install_failure_waits_while_a_node_with_an_unusable_report_is_on_the_machine():
    failure = InstallFailure(instance_id="a", message="no route")
    odd = node("a", status=NodeStatus.UNSPECIFIED)
    seen = world([record("a", S.RAY_INSTALLING)], nodes=[odd], install_failures=(failure,))
    plan = reconcile(seen)
    assert (trail(seen, plan, "a"), plan.undecided) == ([], (failure,))


def test_a_drain_refusal_counts_only_while_it_is_waited_for():
    seen = world([record("a", S.RAY_RUNNING)], drain_failures=(DrainFailure(instance_id="a"),))
    assert unchanged(reconcile(seen))


def test_a_drain_refusal_of_a_node_that_drains_anyway_is_overtaken():
    seen = world(
        [record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)],
        nodes=[node("a", DRAINING)],
        drain_failures=(DrainFailure(instance_id="a"),),
    )
    assert tick(seen)[0] == {"a": "RAY_STOPPING"}


def test_a_drain_refusal_is_heard_also_when_the_nodes_cannot_be_read():
    seen = replace(
        world(
            [record("a", S.RAY_STOP_REQUESTED, stop_cause=StopCause.IDLE)],
            drain_failures=(DrainFailure(instance_id="a", message="busy"),),
        ),
        runtime=None,
    )
    states, plan = tick(seen)
    assert states == {"a": "RAY_RUNNING"}
    assert after(seen, plan)["a"].stop_cause is None


def test_without_a_report_no_node_is_missed():
    seen = replace(world([record("a", S.RAY_RUNNING), record("b", S.RAY_STOPPING)]), runtime=None)
    assert unchanged(reconcile(seen))


# A machine that came up says that its type can be had.

ASKED = past((S.QUEUED, 800), (S.REQUESTED, 900), (S.ALLOCATED, 950))


@pytest.mark.parametrize(("failed_at", "forgiven"), [(899.0, True), (900.0, False), (901.0, False)])
def test_a_node_that_came_clears_failures_older_than_its_request(failed_at, forgiven):
    memory = Memory(health={"cpu": TypeHealth(failures=3.0, failed_at=failed_at, blocked_until=0.0)})
    seen = world([record("a", S.ALLOCATED, history=ASKED)], nodes=[node("a")], memory=memory)
    assert ("cpu" not in reconcile(seen).memory.health) is forgiven


def test_a_machine_nobody_asked_for_clears_nothing():
    """A raylet that restarts on an old machine must not end the back-off of a quota failure."""
    memory = Memory(health={"cpu": TypeHealth(failures=3.0, failed_at=1.0, blocked_until=NOW + 60.0)})
    seen = world([record("old", S.RAY_RUNNING)], nodes=[node("new", cloud_id="c-old")], memory=memory)
    plan = reconcile(seen)
    assert len(created(seen, plan)) == 1
    assert plan.memory.health == memory.health


def test_a_report_without_the_heads_own_node_is_taken_for_incomplete():
    """After a restart of the runtime its nodes come back one by one: nobody is given up meanwhile."""
    seen = world([record("a", S.RAY_RUNNING)], machines=[machine("a")], nodes=[])
    blind = replace(seen, runtime=replace(seen.runtime, nodes=()))
    plan = reconcile(blind)
    assert (trail(blind, plan, "a"), plan.actions) == ([], ())
    assert [note.source for note in plan.quarantined] == ["runtime"]
    late = replace(seen, memory=unreported("a"))
    assert trail(late, reconcile(late), "a") == ["RAY_STOPPED", "TERMINATING"]
