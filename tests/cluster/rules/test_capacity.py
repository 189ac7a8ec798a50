"""What the planner is asked: who counts, who offers what, and who does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import BUSY, HEAD, HEAD_NODE, S, machine, node, past, record, spec, world
from tests.support.builders import NOW, amounts, demand, node_type

from muster.base.resources import EMPTY
from muster.cluster.model import FailureKind, NodeStatus, StopCause, Timeouts
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.rules.draft import Draft
from muster.cluster.snapshot import Memory, ProviderTraits, TypeHealth
from muster.cluster.states import ResizeStatus

CPU = node_type("cpu", {"CPU": 1}, labels={"zone": "a"})


def asked(seen):
    """The planning question of a tick."""
    draft = Draft(seen)
    for rule in RULES[: [r.__name__ for r in RULES].index("capacity") + 1]:
        rule(draft)
    return draft.planned.request


def nodes_of(seen):
    return {n.key: n for n in asked(seen).nodes if n.key != "head"}


def test_a_running_node_is_what_the_runtime_says_it_is():
    size, free = amounts({"CPU": 16}), amounts({"CPU": 3})
    report = node("a", NodeStatus.IDLE, total=size, available=free, labels={"zone": "b"}, idle_s=9.0)
    (it,) = nodes_of(world([record("a", S.RAY_RUNNING, launch_hash="h")], nodes=[report])).values()
    assert (it.total, it.available, it.labels, it.idle_s, it.launch_hash) == (
        size,
        free,
        {"zone": "b"},
        9.0,
        "h",
    )
    assert it.runs


def test_a_node_that_works_is_not_idle_whatever_its_idle_time_says():
    (it,) = nodes_of(world([record("a", S.RAY_RUNNING)], nodes=[node("a", idle_s=9.0)])).values()
    assert it.idle_s == 0.0


@pytest.mark.parametrize("state", [S.QUEUED, S.REQUESTED, S.ALLOCATED, S.RAY_INSTALLING])
def test_a_machine_on_its_way_is_what_its_type_promises(state):
    seen = world([record("a", state)], spec=spec(CPU, limits=spec().limits))
    (it,) = nodes_of(seen).values()
    assert (it.total, it.available, it.labels) == (CPU.resources, CPU.resources, {"zone": "a"})
    assert (it.state, it.runs, it.idle_s) == (state, False, 0.0)


def test_a_running_node_whose_report_makes_no_sense_counts_and_offers_nothing():
    seen = world([record("a", S.RAY_RUNNING)], nodes=[node("a", NodeStatus.UNSPECIFIED)])
    (it,) = nodes_of(seen).values()
    assert (it.available, it.runs) == (EMPTY, True)


@pytest.mark.parametrize(
    "state", [S.RAY_STOPPING, S.RAY_STOPPED, S.TERMINATING, S.TERMINATION_FAILED, S.ALLOCATION_TIMEOUT]
)
def test_w20_what_leaves_for_good_neither_offers_nor_counts(state):
    question = asked(world([record("a", state)]))
    assert [n.key for n in question.nodes] == ["head"]
    assert question.leaving == {}


@pytest.mark.parametrize(
    ("changes", "leaving"),
    [
        ({"state": S.RAY_STOP_REQUESTED, "stop_cause": StopCause.IDLE}, {"cpu": 1}),
        ({"state": S.RAY_STOP_REQUESTED, "stop_cause": None}, {"cpu": 1}),
        ({"state": S.RAY_STOP_REQUESTED, "stop_cause": StopCause.MAX_NODES}, {}),
        ({"state": S.REQUESTED, "cancelled": True}, {"cpu": 1}),
        ({"state": S.REQUESTED, "cancelled": False}, {}),
    ],
)
def test_what_may_come_back_counts_against_the_limits_and_offers_nothing(changes, leaving):
    changes = dict(changes)
    question = asked(world([record("a", changes.pop("state"), **changes)]))
    assert dict(question.leaving) == leaving


def test_a_machine_that_is_kept_without_a_node_is_not_replaced_above_a_limit():
    """A node that names no machine may have been started there again: the machine may serve soon."""
    lost, unseen = record("a", S.RAY_STOPPED, since=NOW - 9.0), node("x", cloud_id=None)
    one = spec(node_type("cpu", max_nodes=1))
    seen = world([lost], nodes=[unseen], demands=[demand()], spec=one)
    assert (dict(asked(seen).leaving), reconcile(seen).actions) == ({"cpu": 1}, ())
    gone = reconcile(world([lost], demands=[demand()], spec=one))
    assert [type(action).__name__ for action in gone.actions] == ["Terminate", "Launch"]


def test_what_is_kept_without_a_node_counts_also_when_the_runtime_cannot_be_read():
    kept, again = record("a", S.RAY_STOPPED, since=NOW - 9.0), past((S.REQUESTED, 1), (S.QUEUED, 2))
    waiting = record("q", S.QUEUED, history=again, launch_request_id="r-1")
    blind = replace(world([kept, waiting], spec=spec(node_type("cpu", max_nodes=1))), runtime=None)
    assert reconcile(blind).actions == ()


def test_offers_come_in_the_order_of_the_config_with_health():
    blocked = TypeHealth(
        failures=1.0, failed_at=NOW, blocked_until=NOW + 9.0, kind=FailureKind.QUOTA, message="0 left"
    )
    slow = TypeHealth(timed_out_at=NOW - 300.0)
    seen = world(
        spec=spec(node_type("b"), node_type("a"), node_type("c")),
        memory=Memory(health={"a": blocked, "c": slow}),
    )
    offers = asked(seen).offers
    assert [o.node_type.name for o in offers] == ["head", "b", "a", "c"]
    assert [o.blocked_kind for o in offers] == [None, None, FailureKind.QUOTA, None]
    assert (offers[2].blocked_until, offers[2].blocked_message) == (NOW + 9.0, "0 left")
    assert [o.recoverable for o in offers] == [1.0, 1.0, 1.0, 0.5]
    assert [o.availability for o in offers] == [1.0, 1.0, 1.0, 0.0]


def test_a_block_that_is_over_blocks_nothing():
    over = TypeHealth(failures=1.0, failed_at=0.0, blocked_until=NOW, kind=FailureKind.QUOTA)
    assert [o.blocked_kind for o in asked(world(memory=Memory(health={"cpu": over}))).offers] == [None, None]


def test_the_wishes_of_the_owner_are_passed_on():
    wishes = spec(
        max_nodes=7,
        idle_timeout_s=12.0,
        check_launch_hash=True,
        conserve_gpus=False,
        timeouts=Timeouts(pending_idle_s=5.0),
    )
    question = asked(world(spec=wishes, demands=[demand()], memory=Memory(pending_idle={"cpu": (1.0,)})))
    assert (question.now, question.max_nodes, question.idle_timeout_s, question.pending_idle_s) == (
        NOW,
        7,
        12.0,
        5.0,
    )
    assert (question.check_launch_hash, question.conserve_gpus) == (True, False)
    assert (question.demands, dict(question.pending_idle)) == ((demand(),), {"cpu": (1.0,)})


def test_without_a_report_nothing_is_planned_and_nothing_is_forgotten():
    memory = Memory(pending_idle={"cpu": (1.0,)})
    seen = replace(world(memory=memory), runtime=None)
    assert asked(seen) is None
    assert dict(reconcile(seen).memory.pending_idle) == {"cpu": (1.0,)}


def test_busy_means_nothing_free():
    (it,) = nodes_of(world([record("a", S.RAY_RUNNING)])).values()
    assert it.available == BUSY


@pytest.mark.parametrize("resizable", [True, False])
def test_where_a_resize_stands_is_told_only_by_providers_that_can_resize(resizable):
    stands = ResizeStatus(current=amounts({"CPU": 1}), desired=amounts({"CPU": 4}), in_progress=True)
    seen = world(
        [record("a", S.RAY_RUNNING), record("b", S.ALLOCATED)],
        machines=[machine("a", resize=stands), machine("b")],
        nodes=[node("a")],
        traits=ProviderTraits(resizable=resizable),
    )
    found = {key: it.resize for key, it in nodes_of(seen).items()}
    assert found == {"a": stands if resizable else None, "b": None}
    blind = replace(seen, cloud=None)
    assert {it.resize for it in nodes_of(blind).values()} == {None}


def test_a_head_whose_node_is_dead_is_not_planned_with():
    """Its record follows in the same tick; the gate is shut."""
    seen = world([HEAD], machines=[], nodes=[replace(HEAD_NODE, status=NodeStatus.DEAD)], head=False)
    assert asked(seen).nodes == ()


@pytest.mark.parametrize(("since", "idle_s"), [(NOW - 7.0, 7.0), (NOW - 5_000.0, 900.0)])
def test_a_node_whose_drain_was_refused_must_be_idle_anew(since, idle_s):
    back = record("a", S.RAY_RUNNING, history=past((S.RAY_STOP_REQUESTED, 1), (S.RAY_RUNNING, since)))
    seen = world([back], nodes=[node("a", NodeStatus.IDLE, idle_s=900.0)])
    assert nodes_of(seen)["a"].idle_s == idle_s
