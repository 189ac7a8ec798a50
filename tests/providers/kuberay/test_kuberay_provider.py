"""The provider against an API server and an operator: what KubeRay's groups are told, and what is listed."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.kube.operator import worker_group
from tests.kube.world import until

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind, NodeKind
from muster.providers.kuberay.provider import KubeRayProvider

ROLES = ("kuberay-1.3", "kuberay-1.7")


def launch(provider: KubeRayProvider, request: str = "r-1", **shape: int) -> None:
    provider.launch(RequestId(request), {name.replace("_", "-"): count for name, count in shape.items()})
    provider.scaler.step()


def terminate(provider: KubeRayProvider, *names: str, request: str = "t-1") -> None:
    provider.terminate(RequestId(request), [CloudId(name) for name in names])
    provider.scaler.step()


def counts(failures):
    return Counter((one.node_type, one.kind) for one in failures)


@pytest.mark.conformance("KR-01")
def test_pods_are_machines_and_one_that_has_not_started_is_pending(world):
    world.create(worker_group("small", 0))
    world.operator.starts = False
    world.admin.edit_group(0, replicas=1)
    world.operator.step()
    provider = world.provider()
    machines = provider.list_instances().values()
    assert {(m.kind, m.node_type, m.is_running) for m in machines} == {
        (NodeKind.HEAD, "headgroup", True),
        (NodeKind.WORKER, "small", False),
    }


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.conformance("KR-02")
def test_a_launch_raises_the_replicas(world, role):
    world.create(worker_group("small", 1))
    provider = world.provider(role)
    launch(provider, small=1)
    assert world.size() == (2, [])
    world.operator.step()
    world.caught_up(provider)
    provider.scaler.step()
    assert len(provider.list_instances()) == 3


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.conformance("KR-03")
def test_a_pod_to_end_is_named_and_the_replicas_are_lowered(world, role):
    world.create(worker_group("small", 1))
    provider = world.provider(role)
    (name,) = world.operator.workers("small")
    terminate(provider, name)
    assert world.size() == (0, [name])
    world.operator.step()
    world.sees(provider)
    assert provider.poll_terminate_failures() == []


@pytest.mark.conformance("KR-04")
def test_a_deletion_under_way_stops_neither_its_own_group_nor_another(world):
    world.create(worker_group("small", 2), worker_group("large", 1))
    provider = world.provider()
    first, second = world.operator.workers("small")
    terminate(provider, first)
    launch(provider, "r-1", large=1)
    terminate(provider, second, request="t-2")
    launch(provider, "r-2", small=1)
    assert world.size(0) == (1, [first, second])
    assert world.size(1) == (2, [])
    assert (provider.poll_launch_failures(), provider.poll_terminate_failures()) == ([], [])
    world.operator.step()
    world.caught_up(provider)
    launch(provider, "r-3", large=1)
    assert world.size(0) == (1, [])  # names of pods that are gone leave with the next patch
    assert world.size(1) == (3, [])


@pytest.mark.conformance("KR-05")
def test_a_minimum_above_the_replicas_counts(world):
    world.create(worker_group("small", 0, minReplicas=2))
    provider = world.provider()
    launch(provider, small=1)
    assert world.size() == (3, [])


def test_pods_that_the_operator_makes_for_a_raised_minimum_are_not_asked_for_again(world):
    world.create(worker_group("small", 0))
    provider = world.provider()
    world.admin.edit_group(0, minReplicas=2)
    launch(provider, "r-1", small=1)
    assert world.size() == (2, [])
    launch(provider, "r-2", small=2)
    assert world.size() == (3, [])


@pytest.mark.conformance("KR-06")
def test_replicas_that_have_no_pods_yet_count(world):
    world.create(worker_group("small", 2))
    world.admin.edit_group(0, replicas=4)
    provider = world.provider()
    launch(provider, small=1)
    assert world.size()[0] == 5
    terminate(provider, world.operator.workers("small")[0])
    assert world.size()[0] == 4


@pytest.mark.conformance("KR-07")
def test_replicas_below_what_is_there_do_not_end_more_than_was_asked_for(world):
    world.create(worker_group("small", 3))
    world.admin.edit_group(0, replicas=1)
    provider = world.provider()
    name = world.operator.workers("small")[0]
    terminate(provider, name)
    assert world.size() == (2, [name])


@pytest.mark.conformance("KR-08")
def test_several_pods_of_several_groups_end_with_one_patch(world, api):
    world.create(worker_group("small", 3), worker_group("large", 2))
    provider = world.provider()
    small, large = world.operator.workers("small"), world.operator.workers("large")
    terminate(provider, small[0], small[1], large[0])
    assert world.size(0) == (1, small[:2])
    assert world.size(1) == (1, large[:1])
    ours = [one for one in api.asked if one.method == "PATCH" and one.token != api.admin_token]
    assert len(ours) == 1


@pytest.mark.conformance("KR-09")
def test_unknown_pods_the_head_and_pods_named_before_change_nothing(world):
    world.create(worker_group("small", 2))
    provider = world.provider()
    name = world.operator.workers("small")[0]
    terminate(provider, name)
    terminate(provider, name, "no-such-pod", "demo-head", request="t-2")
    assert world.size() == (1, [name])
    assert not provider.under_way(RequestId("t-2"))


@pytest.mark.parametrize("by_label", [True, False])
@pytest.mark.conformance("KR-10")
def test_all_hosts_of_a_slice_are_named_together(world, by_label):
    world.operator.slices_by_label = by_label
    world.create(worker_group("tpu", 2, numOfHosts=2))
    provider = world.provider()
    machines = provider.list_instances()
    slices = {}
    for name, machine in machines.items():
        slices.setdefault(machine.slice_id, []).append(name)
    slices.pop("")
    first, second = slices.values()
    terminate(provider, first[0])
    assert world.size() == (2, [])  # its neighbour may be at work
    assert provider.under_way(RequestId("t-1"))
    terminate(provider, first[1], request="t-2")
    assert (world.size()[0], sorted(world.size()[1])) == (1, sorted(first))
    assert not provider.under_way(RequestId("t-1"))
    world.operator.step(2)
    world.sees(provider, *second)


def test_a_launch_of_one_host_brings_a_whole_slice_and_the_next_takes_what_is_left_of_it(world):
    world.create(worker_group("tpu", 0, numOfHosts=4))
    provider = world.provider()
    launch(provider, "r-1", tpu=1)
    launch(provider, "r-2", tpu=3)
    assert world.size() == (1, [])
    launch(provider, "r-3", tpu=2)
    assert world.size() == (2, [])


@pytest.mark.conformance("KR-11")
def test_what_is_above_the_maximum_is_a_counted_failure(world):
    world.create(worker_group("small", 1, maxReplicas=3))
    provider = world.provider()
    launch(provider, small=5)
    assert world.size() == (3, [])
    assert counts(provider.poll_launch_failures()) == {("small", FailureKind.CAPACITY): 3}
    launch(provider, "r-2", small=1)
    assert world.size() == (3, [])
    assert counts(provider.poll_launch_failures()) == {("small", FailureKind.CAPACITY): 1}
    assert not provider.under_way(RequestId("r-2"))


def test_a_maximum_that_was_lowered_below_the_replicas_hangs_nothing(world):
    world.create(worker_group("small", 4), worker_group("large", 0))
    world.admin.edit_group(0, maxReplicas=2)
    provider = world.provider()
    names = world.operator.workers("small")
    launch(provider, large=1, small=1)
    terminate(provider, *names[:2])
    assert world.size(0) == (2, names[:2])
    assert world.size(1) == (1, [])


def test_the_last_worker_goes_too_also_where_the_replicas_were_left_out(world):
    world.create(worker_group("small", None))
    provider = world.provider()
    (name,) = world.operator.workers("small")
    terminate(provider, name)
    assert world.size() == (0, [name])


def test_launches_and_terminations_of_one_tick_are_one_patch(world, api):
    world.create(worker_group("small", 1), worker_group("large", 0))
    provider = world.provider()
    (name,) = world.operator.workers("small")
    provider.terminate(RequestId("t-1"), [CloudId(name)])
    provider.launch(RequestId("r-1"), {"small": 1})
    provider.launch(RequestId("r-2"), {"large": 2})
    provider.scaler.step()
    assert (world.size(0), world.size(1)) == ((1, [name]), (2, []))
    ours = [one for one in api.asked if one.token != api.admin_token and one.method == "PATCH"]
    assert len(ours) == 1


def test_a_repeated_launch_asks_for_nothing_more_also_by_another_process(world):
    world.create(worker_group("small", 0))
    first = world.provider()
    launch(first, small=2)
    launch(first, small=2)
    second = world.provider()
    launch(second, small=2)
    launch(second, "r-2", small=1)
    assert world.size() == (3, [])


def test_a_group_that_is_not_there_is_a_failure_of_its_launch_alone(world):
    world.create(worker_group("small", 0))
    provider = world.provider()
    launch(provider, small=1, gone=2)
    assert world.size() == (1, [])
    assert counts(provider.poll_launch_failures()) == {("gone", FailureKind.CONFIG): 2}


def test_a_suspended_group_is_left_alone(world):
    world.create(worker_group("small", 2))
    provider = world.provider()
    world.admin.edit_group(0, suspend=True)
    launch(provider, small=1)
    terminate(provider, world.operator.workers("small")[0])
    assert world.size() == (2, [])
    assert counts(provider.poll_launch_failures()) == {("small", FailureKind.CAPACITY): 1}


def test_a_cluster_that_another_system_manages_is_read_only(world):
    world.create(worker_group("small", 1), managedBy="kueue.x-k8s.io/multikueue")
    provider = world.provider()
    provider.scaler.step()
    assert provider.traits().read_only
    world.admin.merge_cluster({"spec": {"managedBy": "ray.io/kuberay-operator"}})
    provider.scaler.step()
    assert not provider.traits().read_only


def test_a_pod_that_ended_by_itself_is_replaced_once(world):
    world.create(worker_group("small", 2))
    provider = world.provider()
    provider.scaler.step()
    lost, kept = world.operator.workers("small")
    world.admin.set_status(
        lost, {"phase": "Failed", "reason": "Evicted", "message": "the node ran out of disk"}
    )
    until(lambda: lost not in provider.list_instances())
    launch(provider, small=1)
    world.operator.step(3)
    world.caught_up(provider)
    assert world.size() == (2, [])
    assert len(world.operator.workers("small")) == 2
    assert kept in provider.list_instances()


def test_with_threads_a_tick_asks_and_does_not_wait(world):
    world.create(worker_group("small", 0))
    provider = world.provider(threads=True)
    world.operator.run()
    provider.launch(RequestId("r-1"), {"small": 3})
    until(lambda: len(provider.list_instances()) == 4, "three workers come")
    until(lambda: not provider.under_way(RequestId("r-1")), "the launch is over")
    names = [name for name, pod in provider.pods().items() if pod.is_worker]
    provider.terminate(RequestId("t-1"), names)
    until(lambda: len(provider.list_instances()) == 1, "they go")
    assert world.size()[0] == 0
