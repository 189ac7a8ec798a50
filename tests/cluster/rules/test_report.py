"""What the runtime is told (RC-27 has the whole report)."""

from __future__ import annotations

from msgspec.structs import replace
from tests.cluster.worlds import CPU, S, past, record, spec, world
from tests.support.builders import NOW, demand, gang, node_type

from muster.cluster.model import Constraint, FailureKind, LaunchFailure, LaunchLimits
from muster.cluster.plan import PendingRequest
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import FailedLaunch

STILL = LaunchLimits(max_concurrent=0)


def test_requests_are_grouped_by_id_and_type_and_share_the_time_of_the_first():
    two = spec(CPU, node_type("gpu", {"GPU": 1}), limits=STILL)
    twice = past((S.REQUESTED, 1), (S.QUEUED, 2), (S.REQUESTED, NOW - 3))
    seen = world(
        [
            record("a", S.REQUESTED, history=twice),
            record("b", S.REQUESTED, node_type="gpu", since=NOW - 1),
            record("c", S.REQUESTED, since=NOW - 2),
        ],
        spec=two,
    )
    usual = {"requested_at": NOW - 3, "request_id": "r-1"}
    assert reconcile(seen).report.pending_requests == (
        PendingRequest(node_type="cpu", machine_type="m5.large", count=2, **usual),
        PendingRequest(node_type="gpu", machine_type="", count=1, **usual),
    )


def test_machines_asked_for_in_this_tick_are_reported_as_asked():
    report = reconcile(world(demands=[demand(count=2)])).report
    assert [(p.count, p.requested_at, p.request_id) for p in report.pending_requests] == [
        (1, NOW, "t-1-r3"),
        (1, 0.0, ""),
    ]


def test_a_launch_that_failed_in_this_tick_is_reported_first_with_its_reason():
    """W10: the reference has no reasons here."""
    older = FailedLaunch(instance_id="f", node_type="cpu", started_at=1.0, failed_at=2.0, reason="old")
    failure = LaunchFailure(request_id="r-1", node_type="cpu", kind=FailureKind.QUOTA, message="0 left")
    seen = world(
        [record("a", S.REQUESTED, since=900.0)], launch_failures=(failure,), recent_failures=(older,)
    )
    assert reconcile(seen).report.failed_launches == (
        FailedLaunch(
            instance_id="a",
            node_type="cpu",
            started_at=900.0,
            failed_at=NOW,
            reason="quota: 0 left",
            machine_type="m5.large",
        ),
        replace(older, machine_type="m5.large"),
    )


def test_the_list_of_failures_has_an_end():
    """W13."""
    many = tuple(
        FailedLaunch(instance_id=f"f{i}", node_type="gone", started_at=1.0, failed_at=2.0, reason="")
        for i in range(150)
    )
    assert reconcile(world(recent_failures=many)).report.failed_launches == many[:100]


def test_what_cannot_be_placed_is_reported_with_how_many():
    huge = gang([{"CPU": 64}], gang_id="huge")
    seen = world(
        demands=[demand({"CPU": 1}, 25), demand({"CPU": 2}, 3)],
        gangs=[huge],
        constraints=[Constraint(demands=(demand({"TPU": 1}, 2),))],
    )
    report = reconcile(seen).report
    assert report.infeasible_demands == (demand({"CPU": 1}, 15), demand({"CPU": 2}, 3))
    assert report.infeasible_gangs == (huge,)
    assert report.infeasible_constraints == (demand({"TPU": 1}, 2),)


def test_w31_one_impossible_bundle_does_not_cancel_the_rest_of_a_constraint():
    seen = world(constraints=[Constraint(demands=(demand({"TPU": 1}), demand({"CPU": 1})))])
    plan = reconcile(seen)
    assert plan.report.infeasible_constraints == (demand({"TPU": 1}),)
    assert [dict(a.shape) for a in plan.actions] == [{"cpu": 1}]


def test_it_is_reported_also_while_the_gate_is_shut_or_nothing_can_be_read():
    gated = world([record("q", S.QUEUED)], demands=[demand({"TPU": 1})], head=False)
    assert reconcile(gated).report.infeasible_demands == (demand({"TPU": 1}),)
    blind = replace(world([record("q", S.QUEUED)], spec=spec(limits=STILL)), runtime=None, cloud=None)
    report = reconcile(blind).report
    assert (report.seen_runtime_version, len(report.pending_requests)) == (0, 1)
