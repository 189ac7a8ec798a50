"""Reads when an unused RayCluster ends, and writes the patches that suspend or delete it. Pure.

A cluster is deleted behind a finalizer, so that KubeRay can clean up after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.cluster.model import IdleCluster, IdlePolicy

FINALIZER = "ray.io/idle-termination-cleanup-finalizer"
_POLICIES = {"Suspend": IdlePolicy.SUSPEND, "Delete": IdlePolicy.DELETE}

Plain = Mapping[str, Any]
EXPIRED = "ray.io/no-driver-ttl-expired"  # what operators without options of their own look for


def idle_options(cluster: Plain) -> IdleCluster | None:
    """Returns what the owner of a RayCluster asked for; None: nothing. ValueError names a wrong field.

    Newer operators have options of their own for it; older ones a time among those of the autoscaler.
    """
    spec = cluster.get("spec") or {}
    options = spec.get("idleTerminationOptions") or {}
    where, timeout_s = "spec.idleTerminationOptions.timeoutSeconds", options.get("timeoutSeconds")
    if timeout_s is None:
        where = "spec.autoscalerOptions.noDriverTimeoutSeconds"
        timeout_s = (spec.get("autoscalerOptions") or {}).get("noDriverTimeoutSeconds")
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s < 0:
        raise ValueError(f"{where} is {timeout_s!r}, not a number of seconds")
    policy = options.get("policy") or "Suspend"
    if policy not in _POLICIES:
        raise ValueError(f"spec.idleTerminationOptions.policy is {policy!r}: write Suspend or Delete")
    return IdleCluster(timeout_s=float(timeout_s), policy=_POLICIES[policy])


def suspend_patch(cluster: Plain) -> dict[str, Any]:
    """Returns the merge patch that suspends a cluster, in the words of its operator."""
    if (cluster.get("spec") or {}).get("idleTerminationOptions"):
        return {"spec": {"idleSuspend": True}}
    return {"metadata": {"annotations": {EXPIRED: "true"}}}


def finalizer_patch(cluster: Plain) -> list[dict[str, Any]]:
    """Returns the JSON patch that adds the finalizer to the object as it was read; empty when it has it."""
    metadata = cluster.get("metadata") or {}
    finalizers = metadata.get("finalizers") or []
    if FINALIZER in finalizers:
        return []
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion", "")},
        {"op": "add", "path": "/metadata/finalizers", "value": [*finalizers, FINALIZER]},
    ]
