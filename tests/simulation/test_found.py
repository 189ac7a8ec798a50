"""Keep what the simulator found in the cluster's code, each as the smallest world that shows it."""

from __future__ import annotations

from tests.support.builders import (
    NOW,
    cloud_instance,
    cluster_spec,
    instance,
    node_report,
    node_type,
    snapshot,
)

from muster.cluster.controller import narrowed
from muster.cluster.model import NodeKind, NodeStatus, RuntimeReport, Timeouts
from muster.cluster.plan import Terminate
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Memory, ProviderTraits
from muster.cluster.states import InstanceState as S

LONG_AGO = NOW - 10_000.0
SPEC = cluster_spec((node_type("head", max_nodes=1), node_type("cpu")), head_node_type="head")
HEAD = instance("i-head", node_type="head", kind=NodeKind.HEAD, cloud_id="c-head", node_id="n-head")
HEAD_MACHINE = cloud_instance("c-head", node_type="head", kind=NodeKind.HEAD)
HEAD_NODE = node_report("n-head", node_type="head", cloud_id="c-head", is_head=True)


def moved(world) -> dict[str, list[S]]:
    """Record id to the states it went through in this tick."""
    plan = reconcile(world)
    known = {i.instance_id: len(i.history) for i in world.instances.values()}
    hops = {i.instance_id: [c.state for c in i.history[known.get(i.instance_id, 0) :]] for i in plan.writes}
    return {name: states for name, states in hops.items() if states}


def world(*records, machines=(), nodes=None, **changes):
    """The head and these; `nodes=None` means that the runtime cannot be read."""
    report = None if nodes is None else RuntimeReport(version=1, nodes=(HEAD_NODE, *nodes))
    changes = {"spec": SPEC, "runtime": report, **changes}
    return snapshot((HEAD, *records), cloud=(HEAD_MACHINE, *machines), **changes)


def test_without_a_report_no_machine_is_given_up_for_a_node_that_did_not_come():
    record = instance("i-1", S.ALLOCATED, since=LONG_AGO, cloud_id="c-1")
    assert moved(world(record, machines=[cloud_instance("c-1")])) == {}
    seen = moved(world(record, machines=[cloud_instance("c-1")], nodes=[]))
    assert seen == {"i-1": [S.ALLOCATION_TIMEOUT, S.TERMINATING]}


def test_without_a_list_no_request_is_asked_for_again():
    record = instance("i-1", S.REQUESTED, since=LONG_AGO, launch_request_id="r-1")
    blind = snapshot(
        (HEAD, record), cloud=None, spec=SPEC, runtime=RuntimeReport(version=1, nodes=(HEAD_NODE,))
    )
    assert moved(blind) == {}
    assert moved(world(record, nodes=[]))["i-1"][0] is S.QUEUED


def test_a_node_listed_with_nonsense_is_not_missing():
    record = instance("i-1", S.RAY_RUNNING, cloud_id="c-1", node_id="n-1")
    odd = node_report("n-1", cloud_id="c-1", status=NodeStatus.UNSPECIFIED)
    assert moved(world(record, machines=[cloud_instance("c-1")], nodes=[odd])) == {}


def test_a_machine_with_an_unreadable_new_node_is_not_given_up_for_its_dead_one():
    record = instance("i-1", S.RAY_RUNNING, cloud_id="c-1", node_id="n-1")
    dead = node_report("n-1", cloud_id="c-1", status=NodeStatus.DEAD)
    odd = node_report("n-2", cloud_id="c-1", status=NodeStatus.UNSPECIFIED)
    assert moved(world(record, machines=[cloud_instance("c-1")], nodes=[dead, odd])) == {}


def test_a_cancelled_arrival_waits_for_a_report_of_its_node():
    record = instance("i-1", S.ALLOCATED, cloud_id="c-1", cancelled=True)
    assert moved(world(record, machines=[cloud_instance("c-1")])) == {}
    assert moved(world(record, machines=[cloud_instance("c-1")], nodes=[])) == {"i-1": [S.TERMINATING]}


def test_nothing_is_installed_without_a_report_of_the_runtime():
    record = instance("i-1", S.ALLOCATED, cloud_id="c-1")
    spec = cluster_spec(SPEC.node_types, head_node_type="head", install_runtime=True, timeouts=Timeouts())
    ours = {"spec": spec, "traits": ProviderTraits(installs_runtime=False)}
    assert moved(world(record, machines=[cloud_instance("c-1")], **ours)) == {}
    seen = moved(world(record, machines=[cloud_instance("c-1")], nodes=[], **ours))
    assert seen == {"i-1": [S.RAY_INSTALLING]}


def test_a_repeated_terminate_leaves_machines_alone_that_are_no_longer_to_go():
    action = Terminate(request_id="t-1", cloud_ids=("c-1", "c-2"), instance_ids=("i-1", "i-2"))
    records = {"i-2": instance("i-2", S.TERMINATING, cloud_id="c-2")}
    assert narrowed(action, records) == Terminate(request_id="t-1", cloud_ids=("c-2",), instance_ids=("i-2",))


def test_an_ended_node_stays_remembered_while_it_is_listed_at_all():
    odd = node_report("n-1", cloud_id="c-1", status=NodeStatus.UNSPECIFIED)
    plan = reconcile(world(nodes=[odd], memory=Memory(ended_nodes={"n-1": NOW - 5.0, "n-0": NOW - 9.0})))
    assert plan.memory.ended_nodes == {"n-1": NOW - 5.0}
