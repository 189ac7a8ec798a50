"""Our installer sets machines up when they are up, wanted and nobody else does it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import (
    HEAD,
    HEAD_MACHINE,
    S,
    machine,
    node,
    past,
    record,
    spec,
    tick,
    unchanged,
    world,
)
from tests.support.builders import NOW

from muster.cluster.model import NodeKind
from muster.cluster.plan import Install
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import ProviderTraits

OURS = ProviderTraits(installs_runtime=False)
INSTALL = spec(install_runtime=True)


def test_each_machine_gets_its_own_order():
    seen = world([record("a", S.ALLOCATED), record("b", S.ALLOCATED)], spec=INSTALL, traits=OURS)
    states, plan = tick(seen)
    assert states == {"a": "RAY_INSTALLING", "b": "RAY_INSTALLING"}
    assert plan.actions == tuple(
        Install(request_id=f"t-1-s{n}", instance_id=i, cloud_id=f"c-{i}", node_type="cpu")
        for n, i in enumerate("ab", 1)
    )


def test_a_provider_that_brings_the_runtime_needs_no_installer():
    assert unchanged(reconcile(world([record("a", S.ALLOCATED)], spec=INSTALL)))


def test_a_machine_that_arrives_in_this_tick_is_set_up_in_this_tick():
    seen = world([record("a", S.REQUESTED)], machines=[machine("x")], spec=INSTALL, traits=OURS)
    assert tick(seen)[0] == {"a": "RAY_INSTALLING"}


@pytest.mark.parametrize("state", [S.RAY_INSTALLING, S.RAY_RUNNING, S.TERMINATING])
def test_only_machines_without_a_runtime_are_set_up(state):
    assert unchanged(reconcile(world([record("a", state)], spec=INSTALL, traits=OURS)))


def test_the_head_was_set_up_by_the_launcher():
    head = record("head", S.ALLOCATED, kind=NodeKind.HEAD, node_type="head")
    seen = world([head], machines=[HEAD_MACHINE], nodes=[], head=False, spec=INSTALL, traits=OURS)
    assert unchanged(reconcile(seen))


def test_nothing_is_set_up_without_a_machine_list():
    seen = replace(world([record("a", S.ALLOCATED)], spec=INSTALL, traits=OURS), cloud=None)
    assert unchanged(reconcile(seen))


def test_a_cancelled_machine_is_given_back_and_not_set_up():
    seen = world([record("a", S.ALLOCATED, cancelled=True)], spec=INSTALL, traits=OURS)
    states, plan = tick(seen)
    assert states == {"a": "TERMINATING"}
    assert [a for a in plan.actions if isinstance(a, Install)] == []


@pytest.mark.parametrize(
    ("tag", "state"), [("r-1", "RAY_INSTALLING"), ("r-0", "ALLOCATED"), (None, "RAY_INSTALLING")]
)
def test_a_machine_of_an_earlier_request_is_not_set_up_while_a_node_may_run_there_unseen(tag, state):
    """A new head that could not list its machines asked for one more, and got an old one by its type."""
    stranger = node("s", cloud_id=None, ip="")
    seen = world(
        [record("a", S.REQUESTED)],
        machines=[machine("x", request_id=tag)],
        nodes=[stranger],
        spec=INSTALL,
        traits=OURS,
    )
    assert tick(seen)[0]["a"] == state


def test_a_machine_that_an_earlier_head_asked_for_is_not_set_up_under_a_node_that_cannot_be_matched():
    """The ledger is a copy from before the installation: the node that it led to shows neither id nor ip."""
    asked = past((S.REQUESTED, NOW - 60), (S.ALLOCATED, NOW))
    launched = record("a", S.ALLOCATED, launch_request_id="r-1", history=asked)
    hidden = replace(node("x", node_type="cpu"), cloud_id=None, ip="")
    new_head = replace(HEAD, history=past((S.RAY_RUNNING, NOW)))
    old_head = replace(HEAD, history=past((S.RAY_RUNNING, NOW - 600)))

    def orders(head):
        seen = world([launched], nodes=[hidden], spec=INSTALL, traits=OURS)
        seen = replace(seen, instances={**seen.instances, "head": head})
        return [action for action in reconcile(seen).actions if isinstance(action, Install)]

    assert orders(new_head) == []
    assert len(orders(old_head)) == 1, "its own request: the machine is new"
