"""Pods are resized and an unused cluster ends, through an API server; what no Role allows stays off."""

from __future__ import annotations

import json
import re

import pytest
from tests.kube.operator import running_status, worker_group
from tests.kube.world import until
from tests.mistakes.views import assert_line

from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import FailureKind, IdleCluster, IdlePolicy
from muster.cluster.states import ResizeLimits, ResizeStatus
from muster.providers.kuberay.effects import FINALIZER, IDLE
from muster.providers.kuberay.source import RayClusterSource

GIB = 2**30
SIZES = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"}}
IPPR = json.dumps({"groups": {"small": {"max-cpu": "8", "max-memory": "16Gi", "resize-timeout": 60}}})


def growing_group(replicas=1):
    container = {"name": "ray-worker", "resources": SIZES}
    return worker_group("small", replicas, template={"spec": {"containers": [container]}})


def reported(pod, sizes=SIZES, **more):
    """The status of a pod whose kubelet reports the size of its container."""
    status = running_status(1, **more)
    status["containerStatuses"][0]["resources"] = sizes
    return status


@pytest.fixture
def growing(world):
    """One worker that may grow, as its kubelet reports it."""
    world.create(growing_group())
    world.admin.merge_cluster({"metadata": {"annotations": {"ray.io/ippr": IPPR}}})
    (name,) = world.operator.workers("small")
    world.admin.set_status(name, reported(name))
    return name


def seen(provider, name, holds=lambda status: status is not None):
    return until(lambda: holds(status := provider.list_instances()[name].resize) and status)


@pytest.mark.in_memory_server
@pytest.mark.conformance("IP-2", "IP-10")
def test_the_limits_of_a_group_and_the_size_of_its_pods_are_read(world, growing):
    provider = world.provider("kuberay-1.7")
    spec, problem = RayClusterSource(provider, {}).current()
    limits = ResizeLimits(maximum=Resources.of(CPU=8, memory=16 * GIB), timeout_s=60.0)
    assert (spec.node_type("small").resize, problem) == (limits, "")
    assert provider.traits().resizable
    size = Resources.of(CPU=2, memory=4 * GIB)
    assert seen(provider, growing) == ResizeStatus(current=size, desired=size)


@pytest.mark.conformance("IP-1")
def test_an_annotation_that_is_removed_ends_it(world, growing):
    provider = world.provider("kuberay-1.7")
    source = RayClusterSource(provider, {})
    world.admin.merge_cluster({"metadata": {"annotations": {"ray.io/ippr": None}}})
    provider.scaler.step()
    assert (source.current()[0].node_type("small").resize, provider.traits().resizable) == (None, False)


@pytest.mark.in_memory_server
@pytest.mark.conformance("IP-11", "IP-26")
def test_a_pod_is_resized_by_a_patch_and_kubelet_reports_the_rest(world, growing):
    provider = world.provider("kuberay-1.7")
    provider.resize(RequestId("z-1"), CloudId(growing), {"CPU": 8.0, "memory": 16.0 * GIB})
    until(lambda: world.admin.pod(growing)["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "8000m")
    assert world.admin.pod(growing)["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "8000m", "memory": str(16 * GIB)},
        "requests": {"cpu": "7000m", "memory": str(16 * GIB)},
    }
    status = seen(provider, growing, lambda status: status.in_progress)
    assert status.desired == Resources.of(CPU=8, memory=16 * GIB)
    text = "Node didn't have enough resource: cpu, requested: 7000, used: 1000, capacity: 4000"
    put_off = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": text}
    world.admin.set_status(growing, reported(growing, conditions=[put_off]))
    status = seen(provider, growing, lambda status: status.suggested_maximum is not None)
    assert status.suggested_maximum == Resources.of(CPU=4)
    assert provider.poll_resize_failures() == []


@pytest.mark.conformance("IP-30")
def test_without_the_right_nothing_is_resized_and_the_missing_verb_is_named_once(world, growing, caplog):
    provider = world.provider("kuberay-1.3")
    assert provider.scaler.cluster.read() and provider.traits().resizable
    for number in (1, 2):
        provider.resize(RequestId(f"z-{number}"), CloudId(growing), {"CPU": 8.0})
        (failure,) = until(provider.poll_resize_failures)
        assert (failure.cloud_id, failure.kind) == (growing, FailureKind.PERMISSION)
    assert not provider.traits().resizable
    (line,) = [text for text in caplog.messages if "patch" in text and "pods/resize" in text]
    line = re.sub(r'User "[^"]*"', 'User "ACCOUNT"', line.replace(growing, "POD"))  # a server has its own
    assert_line("providers", "kuberay resize denied", line)


def test_a_refusal_that_passes_is_told_from_one_that_stays(world, growing, api):
    provider = world.provider("kuberay-1.7")
    for code, kind in ((429, FailureKind.THROTTLED), (409, FailureKind.THROTTLED), (422, FailureKind.CONFIG)):
        api.fault("PATCH", "/resize", status=code)
        provider.resize(RequestId("z"), CloudId(growing), {"CPU": 8.0})
        (failure,) = until(provider.poll_resize_failures)
        assert failure.kind is kind
    provider.resize(RequestId("z"), CloudId("no-such-pod"), {"CPU": 8.0})
    (failure,) = until(provider.poll_resize_failures)
    assert failure.cloud_id == "no-such-pod"


# -- idle clusters ------------------------------------------------------------------------------------


def ended(world, role="kuberay-1.3", policy="Suspend", **more):
    """A provider that was asked to end a cluster with these options."""
    world.create(idleTerminationOptions={"timeoutSeconds": 60, "policy": policy}, **more)
    provider = world.provider(role)
    source = RayClusterSource(provider, {})
    assert source.wants_drivers()
    provider.end_idle_cluster(RequestId("e-1"), source.current()[0].idle_cluster.policy)
    return provider


@pytest.mark.conformance("KI-9", "KI-12")
def test_an_idle_cluster_is_suspended_with_the_stock_role(world):
    provider = ended(world)
    until(lambda: world.admin.cluster()["spec"].get("idleSuspend") is True)
    provider.end_idle_cluster(RequestId("e-2"), IdlePolicy.SUSPEND)  # again: nothing changes
    assert provider.traits().idle_policies == (IdlePolicy.SUSPEND, IdlePolicy.DELETE)


def test_where_the_server_prunes_the_fields_an_annotation_suspends_the_cluster(world, api):
    """No CRD of KubeRay 1.3 to 1.7 has the fields of Ray's option."""
    api.prunes = True
    options = {"timeoutSeconds": 30, "policy": "Suspend"}
    world.create(idleTerminationOptions=options, autoscalerOptions={"noDriverTimeoutSeconds": 30})
    provider = world.provider()
    assert RayClusterSource(provider, {}).current()[0].idle_cluster is None
    world.admin.merge_cluster({"metadata": {"annotations": {IDLE: "{timeoutSeconds: 30, policy: Suspend}"}}})
    source = RayClusterSource(provider, {})
    assert source.current()[0].idle_cluster == IdleCluster(timeout_s=30.0)
    provider.end_idle_cluster(RequestId("e-1"), IdlePolicy.SUSPEND)
    until(lambda: world.admin.cluster()["spec"].get("suspend") is True)


def test_an_edit_of_the_annotation_is_an_edit(world):
    world.create(annotations={IDLE: "timeoutSeconds: 30"})
    provider = world.provider()
    source = RayClusterSource(provider, {})
    world.admin.merge_cluster({"metadata": {"annotations": {IDLE: "timeoutSeconds: 90"}}})
    provider.scaler.step()
    assert source.current()[0].idle_cluster == IdleCluster(timeout_s=90.0)


@pytest.mark.conformance("KI-14")
def test_an_idle_cluster_is_deleted_behind_a_finalizer_where_a_role_allows_it(world):
    provider = ended(world, "with-extra-role", "Delete")
    until(lambda: world.admin.cluster()["metadata"].get("deletionTimestamp"))
    assert world.admin.cluster()["metadata"]["finalizers"] == [FINALIZER]
    assert IdlePolicy.DELETE in provider.traits().idle_policies


@pytest.mark.conformance("KI-13", "KI-14")
def test_without_the_right_an_idle_cluster_stays_and_the_missing_verb_is_named_once(world, caplog):
    provider = ended(world, "kuberay-1.7", "Delete")
    until(lambda: provider.traits().idle_policies == (IdlePolicy.SUSPEND,))
    provider.end_idle_cluster(RequestId("e-2"), IdlePolicy.DELETE)
    provider.close()
    left = world.admin.cluster()["metadata"]  # also without a finalizer, which would keep it forever
    assert (left.get("deletionTimestamp"), left.get("finalizers")) == (None, None)
    (line,) = [text for text in caplog.messages if "delete" in text and "rayclusters" in text]
    assert_line("providers", "kuberay delete denied", line)


@pytest.mark.conformance("KI-13")
def test_a_conflict_leaves_it_to_the_next_call(world, api):
    world.create(idleTerminationOptions={"timeoutSeconds": 60, "policy": "Delete"})
    provider = world.provider("with-extra-role")
    fault = api.fault("PATCH", "rayclusters", status=422)
    provider.end_idle_cluster(RequestId("e-1"), IdlePolicy.DELETE)
    until(lambda: fault.times == 0 and not provider.effects._is_ending)
    provider.end_idle_cluster(RequestId("e-2"), IdlePolicy.DELETE)
    until(lambda: api.count("DELETE", "rayclusters") == 1)


def test_options_that_cannot_be_read_leave_the_cluster(world, caplog):
    world.create(idleTerminationOptions={"timeoutSeconds": 60, "policy": "Explode"})
    spec, _ = RayClusterSource(world.provider(), {}).current()
    assert spec.idle_cluster is None
    (line,) = [text for text in caplog.messages if "spec.idleTerminationOptions.policy" in text]
    assert_line("providers", "kuberay idle options", line)
