"""Read pods: which machine each one is, why it does not start, and whether it is being taken away. Pure.

Only the fields that are used are decoded, so that a thousand pods take little memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from muster.base.ids import CloudId
from muster.cluster.model import CloudInstance, FailureKind, MachineProblem, NodeKind
from muster.cluster.states import ResizeStatus
from muster.providers.kuberay.pod_resize import SizedContainer, SizedSpec, resize_status

CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
KIND_LABEL = "ray.io/node-type"
REPLICA_LABELS = ("ray.io/worker-group-replica-name", "replicaIndex")  # from newer operators, and older ones
_KINDS = {"head": NodeKind.HEAD, "worker": NodeKind.WORKER}

_MISTAKES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
_ENDED = frozenset({"Failed", "Succeeded"})
_GRACE_S = 30.0
_MAX_TEXT = 300


class Waiting(Struct):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class ContainerState(Struct):
    """Has one field set."""

    waiting: Waiting | None = None
    running: dict[str, Any] | None = None


class ContainerStatus(SizedContainer):
    """The state of one container."""

    name: str = ""
    state: ContainerState = field(default_factory=ContainerState)


class Condition(Struct):
    """One line of a pod's state."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Struct):
    """What kubelet and scheduler write."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    conditions: list[Condition] | None = None
    containers: list[ContainerStatus] | None = field(default=None, name="containerStatuses")
    init_containers: list[ContainerStatus] | None = field(default=None, name="initContainerStatuses")


class SchedulingGate(Struct):
    """Keeps a pod from being scheduled until its owner removes it."""

    name: str = ""


class PodSpec(SizedSpec):
    """Has what is read of a pod's spec."""

    gates: list[SchedulingGate] | None = field(default=None, name="schedulingGates")
    grace_s: float | None = field(default=None, name="terminationGracePeriodSeconds")


class PodMetadata(Struct):
    """Has what is read of a pod's metadata."""

    name: str
    version: str = field(default="", name="resourceVersion")
    labels: dict[str, str] | None = None
    deleted: str | None = field(default=None, name="deletionTimestamp")


class PodObject(Struct):
    """A pod as the API server sends it."""

    metadata: PodMetadata
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class Pod(Struct, frozen=True, kw_only=True):
    """What muster keeps of one: its machine, its slice, and its end."""

    machine: CloudInstance
    replica: str = ""  # the slice: all hosts of one replica of a group with several
    leaves_at: float | None = None  # by the wall clock; None: it stays
    leaving: str = ""  # why, for users
    ended: str = ""  # why it serves no more; "": it does, or will

    @property
    def name(self) -> CloudId:
        return self.machine.cloud_id

    @property
    def group(self) -> str:
        return self.machine.node_type

    @property
    def is_worker(self) -> bool:
        return self.machine.kind is NodeKind.WORKER

    @property
    def is_living(self) -> bool:
        """Return whether it counts as one of its group: neither ended nor deleted."""
        return not self.ended and self.leaves_at is None


def read_pod(found: PodObject, now: float) -> Pod | None:
    """Return the pod; None for one that is not a node of a cluster (KubeRay labels other pods too)."""
    labels = found.metadata.labels or {}
    kind = _KINDS.get(labels.get(KIND_LABEL, ""))
    group = labels.get(GROUP_LABEL, "")
    if kind is None or not group:
        return None
    leaves_at, leaving = _leaving(found, now)
    status = found.status
    ended = _text(status.reason or status.phase, status.message) if status.phase in _ENDED else ""
    # As in Ray: the first container decides, which is the one of Ray.
    is_running = any(c.state.running is not None for c in (status.containers or ())[:1])
    machine = CloudInstance(
        cloud_id=CloudId(found.metadata.name),
        node_type=group,
        kind=kind,
        is_running=is_running and not ended,
        internal_ip=found.status.pod_ip,
        problem=None if ended or leaves_at is not None else problem_of(found),
        slice_id=next((labels[key] for key in REPLICA_LABELS if labels.get(key)), ""),
        resize=_resize(found),
    )
    return Pod(machine=machine, replica=machine.slice_id, leaves_at=leaves_at, leaving=leaving, ended=ended)


def _resize(found: PodObject) -> ResizeStatus | None:
    status = found.status
    try:
        return resize_status(found.spec.containers, status.containers or (), status.conditions or ())
    except ValueError:  # a quantity that cannot be read: the pod is not resized
        return None


def read_plain(found: Mapping[str, Any], now: float) -> Pod | None:
    """Return the pod of plain data; for one pod, as a GET returns it."""
    return read_pod(msgspec.convert(found, PodObject, strict=False), now)


def _leaving(found: PodObject, now: float) -> tuple[float | None, str]:
    """Return when the pod is taken and why: its deletion, or the announcement of one."""
    disruption = _condition(found.status, "DisruptionTarget", "True")
    why = _text(disruption.reason, disruption.message) if disruption is not None else ""
    if found.metadata.deleted is not None:
        try:
            seconds = datetime.fromisoformat(found.metadata.deleted.replace("Z", "+00:00")).timestamp()
        except ValueError:
            seconds = now + _GRACE_S
        return seconds, why or "the pod was deleted"
    if disruption is not None and found.status.phase not in _ENDED:
        grace_s = _GRACE_S if found.spec.grace_s is None else found.spec.grace_s
        return now + grace_s, why
    return None, ""


def problem_of(found: PodObject) -> MachineProblem | None:
    """Return why a pod does not start; None while it is on its way."""
    status = found.status
    for container in (*(status.init_containers or ()), *(status.containers or ())):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in _MISTAKES:
            text = f"container {container.name}: {_text(waiting.reason, waiting.message)}"
            return MachineProblem(kind=FailureKind.CONFIG, message=text)
    unscheduled = _condition(status, "PodScheduled", "False")
    if found.spec.gates or (unscheduled is not None and unscheduled.reason == "SchedulingGated"):
        gates = ", ".join(gate.name for gate in found.spec.gates or ()) or "a scheduling gate"
        text = f"the pod waits for quota: it is held back by {gates}"
        return MachineProblem(kind=FailureKind.QUOTA, message=text)
    if unscheduled is not None and unscheduled.reason == "Unschedulable":
        text = f"no Kubernetes node has room: {_text(unscheduled.message or unscheduled.reason, '')}"
        return MachineProblem(kind=FailureKind.CAPACITY, message=text)
    return None


def _condition(status: PodStatus, kind: str, value: str) -> Condition | None:
    return next((c for c in status.conditions or () if c.type == kind and c.status == value), None)


def _text(reason: str, message: str) -> str:
    text = f"{reason}: {message}" if message else reason
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
