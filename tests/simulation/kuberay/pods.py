"""Describe simulated machines as the objects of a Kubernetes API server: pods, groups and the RayCluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.kube.objects import Object
from tests.simulation.kuberay.api import NAME

from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, NodeKind, NodeType, ResizeStatus
from muster.providers.kuberay.pod_resize import ANNOTATION
from muster.providers.kuberay.ray_cluster import SETTINGS
from muster.sim.cluster.machines import CloudMachine

_NAMES = {"CPU": "cpu", "memory": "memory", "GPU": "nvidia.com/gpu"}


def pod_object(machine: CloudMachine, size: Resources, replica: str) -> Object:
    """Return the pod of a machine as the operator makes it."""
    kind = "head" if machine.kind is NodeKind.HEAD else "worker"
    labels = {"ray.io/cluster": NAME, "ray.io/group": machine.node_type, "ray.io/node-type": kind}
    if replica:
        labels["ray.io/worker-group-replica-name"] = replica
    containers = [{"name": "ray", "resources": _sizes(size)}]
    return {"metadata": {"name": machine.cloud_id, "labels": labels}, "spec": {"containers": containers}}


def pod_status(
    machine: CloudMachine, status: ResizeStatus | None, *, is_waiting: bool, evicted: str, disrupted: str
) -> Object:
    """Return what scheduler and kubelet write."""
    if evicted:
        return {"phase": "Failed", "reason": evicted, "message": "simulated"}
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": disrupted}] if disrupted else []
    if is_waiting:
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        return {"phase": "Pending", "conditions": [why, *conditions]}
    state: Object = {"waiting": {"reason": "ContainerCreating"}}
    if machine.up:
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    container = {"name": "ray", "state": state}
    if status is not None:
        container["resources"] = _sizes(status.current)
        conditions += _resize_conditions(status)
    return {
        "phase": "Running" if machine.up else "Pending",
        "podIP": machine.ip,
        "containerStatuses": [container],
        "conditions": [{"type": "PodScheduled", "status": "True"}, *conditions],
    }


def _resize_conditions(status: ResizeStatus) -> list[Object]:
    if status.failed:
        return [_condition("PodResizeInProgress", "Error", status.message)]
    if status.suggested_maximum is not None:
        name, units = next(iter(status.suggested_maximum.to_floats().items()))
        room = int(units * 1000) if name == "CPU" else int(units)
        text = f"{_NAMES[name]}, requested: {10 * room + 1}, used: 500, capacity: {room + 500}"
        return [_condition("PodResizePending", "Deferred", f"node lacks room: {text}")]
    if status.message:
        return [_condition("PodResizePending", "Deferred", status.message)]
    return [_condition("PodResizeInProgress", "", "")] if status.in_progress else []


def _condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _sizes(size: Resources) -> Object:
    amounts = {}
    for name, amount in size.to_floats().items():
        if name in _NAMES:
            amounts[_NAMES[name]] = f"{round(amount * 1000)}m" if name == "CPU" else str(round(amount))
    return {"limits": amounts, "requests": dict(amounts)}


def group_object(known: NodeType, hosts: int, before: Mapping[str, Any]) -> Object:
    """Return the group of a node type; what the autoscaler writes stays."""
    most = known.max_nodes // hosts
    return {
        "replicas": 0,
        **before,
        "groupName": known.name,
        "minReplicas": min(-(-known.min_nodes // hosts), most),
        "maxReplicas": most,
        "numOfHosts": hosts,
        "labels": dict(known.labels),
        "rayStartParams": {},
        "template": {"spec": {"containers": [{"name": "ray", "resources": _sizes(known.resources)}]}},
    }


def annotations(spec: ClusterSpec) -> dict[str, str]:
    """Return prices and limits of growth, as their owner writes them."""
    prices = {t.name: {"price_per_hour": t.price_per_hour} for t in spec.node_types[1:]}
    growing = {
        t.name: {
            "max-cpu": t.resize.maximum.to_floats()["CPU"],
            "max-memory": int(t.resize.maximum.to_floats()["memory"]),
            "resize-timeout": t.resize.timeout_s,
        }
        for t in spec.node_types
        if t.resize is not None
    }
    found = {SETTINGS: json.dumps({"available_node_types": prices})}
    return {**found, ANNOTATION: json.dumps({"groups": growing})} if growing else found
