"""A machine changes its size in place: from the planner's wish to the node that counts it, or back again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.cluster.worlds import S, after, following, machine, node, record, spec, world
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, amounts, demand, node_type

from muster.cluster.model import FailureKind, ResizeFailure
from muster.cluster.plan import Launch, Reason, Resize, ResizeNode
from muster.cluster.reconcile import reconcile
from muster.cluster.rules.resize import AGAIN_S
from muster.cluster.snapshot import ProviderTraits
from muster.cluster.states import ResizeLimits, ResizeRecord, ResizeStatus

TRAITS = ProviderTraits(resizable=True)
SMALL, LARGE = amounts({"CPU": 2, "memory": 4}), amounts({"CPU": 8, "memory": 16})
TYPE = node_type("cpu", {"CPU": 2, "memory": 4}, resize=ResizeLimits(maximum=LARGE, timeout_s=60.0))
UNDER_WAY = ResizeRecord(desired=LARGE, since=NOW - 20, asked_at=NOW - 20)
PENDING = ResizeStatus(current=SMALL, desired=LARGE, in_progress=True)
DONE = ResizeStatus(current=LARGE, desired=LARGE)


def seen(status, resize=None, *, total=SMALL, demands=(), of_type=TYPE, **changes):
    """One node that runs on a machine whose size is reported as `status`."""
    return world(
        [record("a", S.RAY_RUNNING, resize=resize)],
        machines=[machine("a", resize=status)],
        nodes=[node("a", total=total, available=total)],
        demands=demands,
        **{"spec": spec(of_type), "traits": TRAITS, **changes},
    )


def resizes(plan):
    return [(type(one), one.desired) for one in plan.actions if isinstance(one, Resize | ResizeNode)]


def kept(given, plan=None):
    return after(given, plan or reconcile(given))["a"].resize


@pytest.mark.conformance("IP-11")
def test_demand_that_fits_after_growth_is_asked_of_the_machine_and_written_down():
    idle = ResizeStatus(current=SMALL, desired=SMALL)
    given = seen(idle, demands=[demand({"CPU": 6})])
    plan = reconcile(given)
    assert resizes(plan) == [(Resize, LARGE)]
    assert kept(given, plan) == ResizeRecord(desired=LARGE, since=NOW, asked_at=NOW)
    again = following(given, plan)
    assert resizes(reconcile(again)) == []  # the node counts with its new size until it has it
    assert not [one for one in reconcile(again).actions if isinstance(one, Launch)]


@pytest.mark.conformance("IP-12")
def test_a_machine_that_grew_is_counted_by_its_node_and_then_the_change_is_over():
    given = seen(DONE, UNDER_WAY)
    plan = reconcile(given)
    assert resizes(plan) == [(ResizeNode, LARGE)]
    assert kept(given, plan).node_asked_at == NOW
    counted = following(given, plan, runtime=seen(DONE, total=LARGE).runtime)
    assert resizes(reconcile(counted)) == []
    assert kept(counted) is None


@pytest.mark.conformance("IP-13")
def test_nothing_is_followed_before_the_machine_has_a_node():
    waits = world(
        [record("a", S.ALLOCATED)],
        machines=[machine("a", resize=DONE)],
        spec=spec(TYPE),
        traits=TRAITS,
    )
    plan = reconcile(waits)
    assert (resizes(plan), kept(waits, plan)) == ([], None)


@pytest.mark.conformance("IP-14")
def test_a_change_that_the_ledger_does_not_know_is_taken_over():
    given = seen(PENDING)
    assert kept(given) == ResizeRecord(desired=LARGE, since=NOW, asked_at=NOW)
    assert resizes(reconcile(given)) == []


@pytest.mark.conformance("IP-15")
def test_a_record_without_anything_to_remember_is_dropped():
    assert kept(seen(ResizeStatus(current=SMALL, desired=SMALL), ResizeRecord())) is None


@pytest.mark.parametrize(
    ("most", "wanted"),
    [
        ({"CPU": 5}, {"CPU": 5, "memory": 16}),
        ({"memory": 9}, {"CPU": 8, "memory": 9}),
        ({"CPU": 1}, {"CPU": 2, "memory": 16}),  # never below what was launched
    ],
)
@pytest.mark.conformance("IP-19", "IP-20")
def test_a_machine_that_is_put_off_is_asked_for_what_its_host_can_give(most, wanted):
    waits = replace(PENDING, suggested_maximum=amounts(most), message="node full")
    given = seen(waits, UNDER_WAY)
    plan = reconcile(given)
    assert resizes(plan) == [(Resize, amounts(wanted))]
    assert kept(given, plan) == ResizeRecord(
        desired=amounts(wanted), since=NOW, asked_at=NOW, suggested_maximum=amounts(most)
    )
    assert dict(plan.memory.ungrowing) == {"cpu": NOW + given.spec.backoff.max_s}


@pytest.mark.conformance("IP-23")
def test_a_machine_that_is_put_off_without_a_number_is_waited_for():
    given = seen(replace(PENDING, message="something else"), UNDER_WAY)
    assert (resizes(reconcile(given)), kept(given)) == ([], UNDER_WAY)


def test_suggestions_for_several_resources_are_added_up():
    known = replace(
        UNDER_WAY, suggested_maximum=amounts({"CPU": 5}), desired=amounts({"CPU": 5, "memory": 16})
    )
    given = seen(replace(PENDING, suggested_maximum=amounts({"memory": 9})), known)
    assert kept(given).suggested_maximum == amounts({"CPU": 5, "memory": 9})


@pytest.mark.conformance("IP-24", "IP-28")
def test_an_error_of_the_host_is_remembered_and_the_request_taken_back():
    error = replace(PENDING, in_progress=False, failed=True, message="no cgroup")  # as a pod shows it
    given = seen(error, UNDER_WAY)
    plan = reconcile(given)
    assert resizes(plan) == [(Resize, SMALL)]
    failed = kept(given, plan)
    assert (failed.failed_at, failed.reason, failed.desired) == (NOW, "no cgroup", SMALL)
    back = following(given, plan, cloud=seen(ResizeStatus(current=SMALL, desired=SMALL)).cloud)
    assert resizes(reconcile(back)) == []
    assert kept(back) == ResizeRecord(failed_at=NOW, reason="no cgroup")


def test_an_error_that_an_earlier_ledger_left_behind_is_taken_back():
    error = ResizeStatus(current=SMALL, desired=LARGE, failed=True, message="no cgroup")
    assert resizes(reconcile(seen(error))) == [(Resize, SMALL)]


@pytest.mark.conformance("IP-25", "IP-28")
def test_a_change_that_takes_too_long_is_given_up():
    late = replace(UNDER_WAY, since=NOW - 61)
    given = seen(replace(PENDING, message="deferred"), late)
    plan = reconcile(given)
    assert resizes(plan) == [(Resize, SMALL)]
    assert_line("cluster", "resize too slow", kept(given, plan).reason)
    in_time = seen(PENDING, replace(UNDER_WAY, since=NOW - 60))
    assert resizes(reconcile(in_time)) == []


@pytest.mark.parametrize("unseen", ["list", "machine", "report"])
def test_a_late_change_is_given_up_in_the_first_tick_that_sees_the_machine_and_its_node(unseen):
    """Seeds 11100 and 11971 of KubeRay: the API server was away for longer than the change may take."""
    late = replace(UNDER_WAY, since=NOW - 600)
    given = seen(PENDING, late)
    others = {name: one for name, one in given.cloud.items() if one.resize is None}
    gaps = {"list": {"cloud": None}, "machine": {"cloud": others}, "report": {"runtime": None}}
    plan = reconcile(replace(given, **gaps[unseen]))
    assert resizes(plan) == []
    again = following(given, plan)
    assert kept(again).failed_at == again.now


@pytest.mark.conformance("IP-29", "IP-30")
def test_a_machine_that_failed_once_is_never_asked_again():
    failed = ResizeRecord(failed_at=NOW - 500, reason="no cgroup")
    given = seen(ResizeStatus(current=SMALL, desired=SMALL), failed, demands=[demand({"CPU": 6})])
    plan = reconcile(given)
    assert (resizes(plan), kept(given, plan)) == ([], failed)
    assert [v.detail for v in plan.verdicts if v.reason is Reason.RESIZE_FAILED] == ["no cgroup"]


def test_what_a_machine_kept_of_a_failed_change_is_counted():
    half = amounts({"CPU": 8, "memory": 4})
    given = seen(ResizeStatus(current=half, desired=LARGE, in_progress=True, failed=True), UNDER_WAY)
    plan = reconcile(given)
    assert resizes(plan) == [(Resize, half)]
    settled = following(given, plan, cloud=seen(ResizeStatus(current=half, desired=half)).cloud)
    assert resizes(reconcile(settled)) == [(ResizeNode, half)]


@pytest.mark.conformance("IP-16")
def test_a_node_counts_less_before_its_machine_shrinks():
    down = replace(UNDER_WAY, desired=SMALL, asked_at=None)
    given = seen(DONE, down, total=LARGE)
    plan = reconcile(given)
    assert resizes(plan) == [(ResizeNode, SMALL)]
    shrunk = following(given, plan, runtime=seen(DONE, total=SMALL).runtime)
    assert resizes(reconcile(shrunk)) == [(Resize, SMALL)]


@pytest.mark.conformance("IP-16")
def test_a_machine_shrinks_only_to_what_its_node_could_do_without():
    down = replace(UNDER_WAY, desired=SMALL, asked_at=None, node_asked_at=NOW - AGAIN_S - 1)
    busy = amounts({"CPU": 5, "memory": 4})
    assert resizes(reconcile(seen(DONE, down, total=busy))) == [(Resize, busy)]
    just_asked = replace(down, node_asked_at=NOW - 1)
    assert resizes(reconcile(seen(DONE, just_asked, total=busy))) == []


@pytest.mark.conformance("IP-17")
def test_a_machine_does_not_shrink_when_the_runtime_refuses():
    down = replace(UNDER_WAY, desired=SMALL, asked_at=None, node_asked_at=NOW - 1)
    refused = ResizeFailure(cloud_id="c-a", message="raylet away", is_of_node=True)
    given = seen(DONE, down, total=LARGE, resize_failures=(refused,))
    assert (resizes(reconcile(given)), kept(given)) == ([], None)


@pytest.mark.conformance("IP-18")
def test_a_change_that_goes_up_and_down_asks_the_node_only_for_what_goes_down():
    mixed = amounts({"CPU": 2, "memory": 16})
    both = replace(UNDER_WAY, desired=mixed, asked_at=None)
    now = amounts({"CPU": 8, "memory": 4})
    given = seen(ResizeStatus(current=now, desired=now), both, total=now)
    plan = reconcile(given)
    assert resizes(plan) == [(ResizeNode, amounts({"CPU": 2}))]
    shrunk = following(given, plan, runtime=seen(DONE, total=SMALL).runtime)
    assert resizes(reconcile(shrunk)) == [(Resize, mixed)]


def test_what_is_not_seen_is_asked_for_again():
    unheard = ResizeStatus(current=SMALL, desired=SMALL)
    assert resizes(reconcile(seen(unheard, UNDER_WAY))) == [(Resize, LARGE)]
    just_asked = replace(UNDER_WAY, asked_at=NOW - 1)
    assert resizes(reconcile(seen(unheard, just_asked))) == []


def test_a_node_that_does_not_count_is_asked_again():
    told = replace(UNDER_WAY, node_asked_at=NOW - AGAIN_S - 1)
    assert resizes(reconcile(seen(DONE, told))) == [(ResizeNode, LARGE)]
    just_told = replace(UNDER_WAY, node_asked_at=NOW - 1)
    assert resizes(reconcile(seen(DONE, just_told))) == []


def test_a_refusal_that_may_pass_is_repeated_and_any_other_is_final():
    unheard = ResizeStatus(current=SMALL, desired=SMALL)
    slow = ResizeFailure(cloud_id="c-a", kind=FailureKind.THROTTLED, message="429")
    given = seen(unheard, UNDER_WAY, resize_failures=(slow,))
    assert resizes(reconcile(given)) == [(Resize, LARGE)]
    denied = ResizeFailure(
        cloud_id="c-a", kind=FailureKind.PERMISSION, message="no verb patch of pods/resize"
    )
    given = seen(unheard, UNDER_WAY, resize_failures=(denied,))
    assert (resizes(reconcile(given)), kept(given).reason) == ([], "no verb patch of pods/resize")


def test_a_right_that_is_lost_while_a_change_is_under_way_ends_the_change():
    """Found by the simulated RayCluster, seed 544: the record stayed as if the machine still grew."""
    denied = ResizeFailure(cloud_id="c-a", kind=FailureKind.PERMISSION, message="no verb")
    given = seen(PENDING, UNDER_WAY, resize_failures=(denied,), traits=ProviderTraits())
    assert kept(given).reason == "no verb"


@pytest.mark.conformance("IP-1")
def test_without_limits_or_without_the_capability_nothing_happens():
    plain = node_type("cpu", {"CPU": 2, "memory": 4})
    wanted = [demand({"CPU": 6})]
    for given in (
        seen(PENDING, UNDER_WAY, demands=wanted, of_type=plain),
        seen(PENDING, UNDER_WAY, demands=wanted, traits=ProviderTraits()),
        seen(PENDING, UNDER_WAY, demands=wanted, traits=ProviderTraits(resizable=True, read_only=True)),
        seen(None, UNDER_WAY),
    ):
        assert (resizes(reconcile(given)), kept(given)) == ([], UNDER_WAY)


def test_a_machine_that_leaves_keeps_its_size():
    given = world(
        [record("a", S.RAY_STOP_REQUESTED, resize=UNDER_WAY)],
        machines=[machine("a", resize=replace(PENDING, failed=True))],
        spec=spec(TYPE),
        traits=TRAITS,
    )
    assert resizes(reconcile(given)) == []


def test_while_no_list_can_be_read_nothing_is_bought_for_what_is_growing():
    given = seen(PENDING, UNDER_WAY, demands=[demand({"CPU": 6})])
    blind = replace(given, cloud=None)
    assert [a for a in reconcile(blind).actions if isinstance(a, Launch | Resize)] == []


def test_after_a_failure_new_machines_are_planned_as_they_are_bought():
    idle = ResizeStatus(current=SMALL, desired=SMALL)
    failed = ResizeRecord(failed_at=NOW - 5, reason="x")
    fresh = seen(idle, failed, demands=[demand({"CPU": 6})])
    assert any(isinstance(a, Launch) for a in reconcile(fresh).actions)
    known = replace(fresh, memory=replace(fresh.memory, ungrowing={"cpu": NOW + 1}))
    plan = reconcile(known)
    assert not any(isinstance(a, Launch) for a in plan.actions)
    assert Reason.INFEASIBLE in {v.reason for v in plan.verdicts}
    passed = replace(fresh, memory=replace(fresh.memory, ungrowing={"cpu": NOW}))
    assert dict(reconcile(passed).memory.ungrowing) == {}
