"""When an unused RayCluster ends, by its own options."""

from __future__ import annotations

import pytest

from muster.cluster.model import IdleCluster, IdlePolicy
from muster.providers.kuberay.effects import FINALIZER, finalizer_patch, idle_options


@pytest.mark.conformance("KI-9")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"idleTerminationOptions": {"timeoutSeconds": 60}}, IdleCluster(timeout_s=60.0)),
        (
            {"idleTerminationOptions": {"timeoutSeconds": 60, "policy": "Delete"}},
            IdleCluster(timeout_s=60.0, policy=IdlePolicy.DELETE),
        ),
        ({"autoscalerOptions": {"noDriverTimeoutSeconds": 30}}, IdleCluster(timeout_s=30.0)),
        (
            {
                "idleTerminationOptions": {"timeoutSeconds": 0, "policy": "Suspend"},
                "autoscalerOptions": {"noDriverTimeoutSeconds": 30},
            },
            IdleCluster(timeout_s=0.0),
        ),
    ],
)
def test_the_options_of_a_cluster_are_read(spec, expected):
    assert idle_options({"spec": spec}) == expected


@pytest.mark.conformance("KI-10", "KI-11")
@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"spec": {}},
        {"spec": {"autoscalerOptions": {}}},
        {"spec": {"idleTerminationOptions": {"policy": "Delete"}}},
    ],
)
def test_a_cluster_without_a_time_stays(cluster):
    assert idle_options(cluster) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeoutSeconds": "soon"}, "spec.idleTerminationOptions.timeoutSeconds is 'soon', not a number"),
        ({"timeoutSeconds": -1}, "is -1, not a number"),
        ({"timeoutSeconds": 5, "policy": "Explode"}, "policy is 'Explode': write Suspend or Delete"),
    ],
)
def test_what_cannot_be_used_is_named(options, expected):
    with pytest.raises(ValueError, match=expected):
        idle_options({"spec": {"idleTerminationOptions": options}})


def test_the_finalizer_is_added_once_and_only_to_the_object_that_was_read():
    assert finalizer_patch({"metadata": {"resourceVersion": "7", "finalizers": ["a"]}}) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/finalizers", "value": ["a", FINALIZER]},
    ]
    assert finalizer_patch({"metadata": {"finalizers": [FINALIZER]}}) == []
