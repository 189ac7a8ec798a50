"""Pods that change their size: limits from an annotation, progress from kubelet, and the patch."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from tests.mistakes.views import assert_line

from muster.base.resources import Resources
from muster.cluster.states import ResizeLimits, ResizeStatus
from muster.providers.kuberay.pod_resize import (
    ContainerSizes,
    SizedContainer,
    resize_limits,
    resize_patch,
    resize_status,
)

GIB = 2**30
FULL = {"max-cpu": "8", "max-memory": "16Gi", "resize-timeout": 60}


@dataclass
class Condition:
    type: str
    reason: str = ""
    message: str = ""
    status: str = "True"


def sized(limits=None, requests=None):
    return SizedContainer(resources=ContainerSizes(limits=limits, requests=requests))


def cluster(entry=None, *, text=None, params=None, requests=None, policy=(), group="workers"):
    """A RayCluster with one group of workers and this entry for it."""
    container = {
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"} if requests is None else requests},
        "resizePolicy": list(policy),
    }
    notes = text if text is not None else json.dumps({"groups": {group: entry}})
    return {
        "metadata": {"annotations": {"ray.io/ippr": notes}},
        "spec": {
            "headGroupSpec": {"template": {"spec": {"containers": [container]}}},
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "rayStartParams": params or {},
                    "template": {"spec": {"containers": [container]}},
                }
            ],
        },
    }


@pytest.mark.conformance("IP-1")
@pytest.mark.parametrize("metadata", [{}, {"annotations": None}, {"annotations": {"ray.io/ippr": ""}}])
def test_without_the_annotation_no_group_grows(metadata):
    assert resize_limits({"metadata": metadata}) == ({}, [])


@pytest.mark.conformance("IP-2")
@pytest.mark.parametrize("group", ["workers", "headgroup"])
def test_a_whole_entry_becomes_limits(group):
    expected = ResizeLimits(maximum=Resources.of(CPU=8, memory=16 * GIB), timeout_s=60.0)
    assert resize_limits(cluster(FULL, group=group)) == ({group: expected}, [])


def problem(given):
    found, problems = resize_limits(given)
    assert found == {}
    (text,) = problems
    return text


@pytest.mark.conformance("IP-3", "IP-4", "IP-5")
@pytest.mark.parametrize("missing", ["max-cpu", "max-memory", "resize-timeout"])
def test_an_entry_must_have_all_three(missing):
    entry = {key: value for key, value in FULL.items() if key != missing}
    assert_line("providers", f"kuberay resize, {missing}", problem(cluster(entry)))


@pytest.mark.conformance("IP-6", "IP-7")
@pytest.mark.parametrize("key", ["num-cpus", "memory"])
def test_a_group_whose_start_parameters_fix_its_size_is_not_resized(key):
    assert_line("providers", f"kuberay resize, {key}", problem(cluster(FULL, params={key: "2"})))


@pytest.mark.conformance("IP-8")
@pytest.mark.parametrize("requests", [{}, {"cpu": 1}, {"memory": "1Gi"}])
def test_a_group_without_requests_is_not_resized(requests):
    given = "+".join(requests) or "none"
    assert_line("providers", f"kuberay resize, requests {given}", problem(cluster(FULL, requests=requests)))


@pytest.mark.conformance("IP-9")
@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_group_whose_containers_restart_for_another_size_is_not_resized(name):
    policy = [{"resourceName": name, "restartPolicy": "RestartContainer"}]
    assert_line("providers", f"kuberay resize, policy of {name}", problem(cluster(FULL, policy=policy)))
    fine = [{"resourceName": name, "restartPolicy": "NotRequired"}]
    assert resize_limits(cluster(FULL, policy=fine))[1] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (cluster(text="{"), "is not JSON"),
        (cluster(text="[]"), "is not JSON"),
        (cluster(text='{"groups": 3}'), "is not JSON"),
        (cluster(FULL, group="nobody"), "the RayCluster has no such group"),
        (cluster(3), "its entry is not a mapping"),
        (cluster({**FULL, "max-cpu": "many"}), "'many' is not a quantity"),
        (cluster({**FULL, "max-cpu": 0}), "must be more than 0"),
        (cluster({**FULL, "resize-timeout": "soon"}), "resize-timeout is 'soon', not a number of seconds"),
    ],
)
def test_what_cannot_be_used_is_named_in_a_sentence(given, expected):
    assert expected in problem(given)


def test_a_group_that_cannot_be_used_leaves_the_others():
    both = cluster(text=json.dumps({"groups": {"workers": FULL, "nobody": FULL}}))
    found, problems = resize_limits(both)
    assert (list(found), len(problems)) == (["workers"], 1)


# -- where a pod stands -------------------------------------------------------------------------------

SPEC = [sized({"cpu": "4", "memory": "8Gi"}, {"cpu": "3", "memory": "6Gi"})]
NOW = [sized({"cpu": "2", "memory": "4Gi"}, {"cpu": "1", "memory": "2Gi"})]


@pytest.mark.conformance("IP-10")
def test_the_status_has_what_is_there_and_what_was_asked_for():
    assert resize_status(SPEC, NOW, []) == ResizeStatus(
        current=Resources.of(CPU=2, memory=4 * GIB),
        desired=Resources.of(CPU=4, memory=8 * GIB),
        in_progress=True,
    )
    assert resize_status(SPEC, SPEC, []).in_progress is False
    only_requests = [sized(None, {"cpu": "500m", "memory": "1Gi"})]
    assert resize_status(only_requests, only_requests, []).current == Resources.of(CPU=0.5, memory=GIB)


@pytest.mark.parametrize(("spec", "status"), [([], NOW), (SPEC, []), (SPEC, [sized()]), ([sized()], NOW)])
def test_a_pod_whose_size_is_not_reported_has_no_status(spec, status):
    assert resize_status(spec, status, []) is None


def short(name, used, capacity, **changes):
    text = f"Node didn't have enough resource: {name}, requested: 9, used: {used}, capacity: {capacity}"
    return Condition("PodResizePending", message=text, **{"reason": "Deferred", **changes})


@pytest.mark.parametrize(
    ("condition", "suggested"),
    [
        pytest.param(short("cpu", 1500, 4000), {"CPU": 3.5}, id="deferred-cpu"),
        pytest.param(short("cpu", 1500, 4000, reason="Infeasible"), {"CPU": 3.5}, id="infeasible-cpu"),
        pytest.param(short("memory", GIB, 4 * GIB), {"memory": 5 * GIB}, id="deferred-memory"),
        pytest.param(short("memory", GIB, 4 * GIB, reason="Infeasible"), {"memory": 5 * GIB}, id="memory"),
    ],
)
@pytest.mark.conformance("IP-19", "IP-20", "IP-21", "IP-22")
def test_a_pod_that_is_put_off_is_offered_what_the_host_has_left(condition, suggested):
    """One core, and 2 GiB, lie between request and limit."""
    found = resize_status(SPEC, NOW, [condition])
    assert (found.suggested_maximum, found.in_progress, found.failed) == (
        Resources.of(suggested),
        True,
        False,
    )
    assert found.message.startswith(condition.reason)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("cpu, requested: 8000, capacity: 4000", {"CPU": 5}),
        ("memory, requested: 9, capacity: 4", {"memory": 2 * GIB + 4}),
    ],
)
def test_what_a_node_has_in_all_is_learned_from_an_infeasible_resize(text, suggested):
    """The text of kubelet has no `used:` then."""
    text = f"Node didn't have enough capacity: {text}"
    found = resize_status(SPEC, NOW, [Condition("PodResizePending", reason="Infeasible", message=text)])
    assert found.suggested_maximum == Resources.of(suggested)


@pytest.mark.conformance("IP-31")
def test_the_requests_of_other_containers_are_not_offered():
    with_sidecar = [*SPEC, sized(None, {"cpu": "250m"}), sized(None, {"memory": "1Gi"})]
    assert resize_status(with_sidecar, NOW, [short("cpu", 1500, 4000)]).suggested_maximum == Resources.of(
        CPU=3.25
    )
    found = resize_status(with_sidecar, NOW, [short("memory", GIB, 4 * GIB)])
    assert found.suggested_maximum == Resources.of(memory=4 * GIB)


@pytest.mark.conformance("IP-23")
def test_a_message_without_numbers_offers_nothing():
    found = resize_status(SPEC, NOW, [Condition("PodResizePending", "Deferred", "try later")])
    assert (found.suggested_maximum, found.in_progress) == (None, True)
    assert found.message.split(": ") == ["Deferred", "try later"]


@pytest.mark.conformance("IP-24")
def test_an_error_of_kubelet_is_a_failure():
    found = resize_status(SPEC, NOW, [Condition("PodResizeInProgress", "Error", "cgroup")])
    assert (found.failed, found.in_progress, found.message) == (True, False, "Error: cgroup")
    moving = resize_status(SPEC, NOW, [Condition("PodResizeInProgress")])
    assert (moving.failed, moving.in_progress) == (False, True)
    over = resize_status(SPEC, SPEC, [Condition("PodResizeInProgress", status="False")])
    assert (over.failed, over.in_progress) == (False, False)


# -- the patch ----------------------------------------------------------------------------------------


def written(first, desired):
    prefix = "/spec/containers/0/resources/"
    return {one["path"].removeprefix(prefix): one["value"] for one in resize_patch(first, desired)}


@pytest.mark.conformance("IP-26")
def test_with_limits_the_distance_to_the_requests_is_kept():
    first = SPEC[0].resources
    assert written(first, {"CPU": 8, "memory": 16 * GIB}) == {
        "limits/cpu": "8000m",
        "requests/cpu": "7000m",
        "limits/memory": str(16 * GIB),
        "requests/memory": str(14 * GIB),
    }
    assert {one["op"] for one in resize_patch(first, {"CPU": 8})} == {"replace"}


@pytest.mark.conformance("IP-27")
def test_without_limits_only_the_requests_change():
    first = ContainerSizes(requests={"cpu": "1", "memory": "2Gi"})
    assert written(first, {"CPU": 1.5, "memory": 3 * GIB}) == {
        "requests/cpu": "1500m",
        "requests/memory": str(3 * GIB),
    }
    assert written(first, {"CPU": 2}) == {"requests/cpu": "2000m"}


def test_a_request_never_falls_to_nothing():
    first = ContainerSizes(limits={"cpu": "4"}, requests={"cpu": "1"})
    assert written(first, {"CPU": 2}) == {"limits/cpu": "2000m", "requests/cpu": "1m"}
