"""What pods say: pure."""

from __future__ import annotations

import pytest
from tests.mistakes.views import assert_line

from muster.cluster.model import FailureKind, NodeKind
from muster.providers.kuberay.pods import read_plain

NOW = 1_750_000_000.0


def pod(status=None, spec=None, labels=None, **metadata):
    labels = {"ray.io/cluster": "demo", "ray.io/node-type": "worker", "ray.io/group": "small"} | (
        labels or {}
    )
    return {
        "metadata": {"name": "p", "labels": labels, **metadata},
        "spec": spec or {},
        "status": status or {},
    }


def problem(**given):
    found = read_plain(pod(**given), NOW).machine.problem
    return None if found is None else (found.kind, found.message)


def unscheduled(reason, message=""):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason, message="", key="containerStatuses"):
    return {
        "phase": "Pending",
        key: [{"name": "ray", "state": {"waiting": {"reason": reason, "message": message}}}],
    }


def test_a_running_pod_is_a_machine_with_its_address():
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{"name": "ray", "state": state}]}
    machine = read_plain(pod(status), NOW).machine
    assert (machine.cloud_id, machine.node_type, machine.kind) == ("p", "small", NodeKind.WORKER)
    assert (machine.is_running, machine.internal_ip, machine.problem) == (True, "10.0.0.7", None)


def test_a_second_container_does_not_make_a_pod_run():
    running, pending = {"running": {}}, {"waiting": {"reason": "ContainerCreating"}}
    states = [{"name": "ray", "state": pending}, {"name": "sidecar", "state": running}]
    assert not read_plain(pod({"containerStatuses": states}), NOW).machine.is_running


@pytest.mark.parametrize("labels", [{"ray.io/node-type": "redis-cleanup"}, {"ray.io/group": ""}])
def test_other_pods_with_kuberays_labels_are_no_machines(labels):
    assert read_plain(pod(labels=labels), NOW) is None


def test_an_unschedulable_pod_has_no_capacity_and_says_why():
    text = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    kind, message = problem(status=unscheduled("Unschedulable", text))
    assert kind is FailureKind.CAPACITY
    assert_line("providers", "kuberay pod unschedulable", message)


def test_a_gated_pod_waits_for_quota_and_is_never_a_slow_start():
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    expected = (FailureKind.QUOTA, "the pod waits for quota: it is held back by kueue.x-k8s.io/admission")
    assert problem(status=unscheduled("SchedulingGated"), spec=gates) == expected
    assert problem(spec=gates) == expected
    assert problem(status=unscheduled("SchedulingGated"))[0] is FailureKind.QUOTA


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"])
@pytest.mark.parametrize("key", ["containerStatuses", "initContainerStatuses"])
def test_a_mistake_in_the_template_is_one_of_the_configuration(reason, key):
    found = problem(status=waiting(reason, "no such image", key))
    assert found[0] is FailureKind.CONFIG
    assert_line("providers", f"kuberay pod, {reason}", found[1])


def test_a_pod_that_is_on_its_way_has_no_problem():
    assert problem(status=waiting("ContainerCreating")) is None
    assert problem() is None


def test_an_evicted_pod_has_ended_and_says_why():
    found = read_plain(pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}), NOW)
    assert (found.ended.split(": "), found.is_living) == (["Evicted", "low on memory"], False)


def test_a_deleted_pod_leaves_at_its_deletion_timestamp():
    found = read_plain(pod(deletionTimestamp="2025-06-15T15:07:10Z"), NOW)
    assert found.leaves_at == 1_750_000_030.0
    assert_line("providers", "kuberay pod deleted", found.leaving)


def test_a_disruption_is_announced_with_the_pods_grace():
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "m",
    }
    found = read_plain(pod({"conditions": [condition]}, {"terminationGracePeriodSeconds": 45}), NOW)
    assert (found.leaves_at, found.leaving) == (NOW + 45, "PreemptionByScheduler: m")


@pytest.mark.parametrize("key", ["ray.io/worker-group-replica-name", "replicaIndex"])
def test_hosts_of_one_replica_are_a_slice(key):
    found = read_plain(pod(labels={key: "tpu-1"}), NOW)
    assert (found.replica, found.machine.slice_id) == ("tpu-1", "tpu-1")
