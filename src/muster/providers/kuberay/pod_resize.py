"""Read how far pods may grow in place and how far they are, and writes the patch that resizes one. Pure.

The limits are in an annotation of the RayCluster; a group whose entry cannot be used is reported and left as
it is, the others count. What kubelet reports of a resize becomes a ResizeStatus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from msgspec import Struct, field

from muster.base.resources import Resources
from muster.cluster.states import ResizeLimits, ResizeStatus
from muster.providers.kuberay.ray_cluster import quantity

ANNOTATION = "ray.io/ippr"
HEAD_GROUP = "headgroup"
_FIELDS = ("max-cpu", "max-memory", "resize-timeout")
_NAMES = {"cpu": "CPU", "memory": "memory"}  # of Kubernetes, and of Ray
_PENDING, _IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
# Deferred: with what others use. Infeasible, above all that the node has: without.
_SHORTAGE = re.compile(r"\b(cpu|memory), requested: (\d+), (?:used: (\d+), )?capacity: (\d+)")

Plain = Mapping[str, Any]
Sizes = dict[str, Decimal]  # cpu in cores, memory in bytes


class ContainerSizes(Struct):
    """What a container may use and what is kept for it."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class SizedContainer(Struct):
    """The size of one container, of a spec or of a status."""

    resources: ContainerSizes = field(default_factory=ContainerSizes)


class SizedSpec(Struct):
    """Has the sizes of a pod's containers."""

    containers: list[SizedContainer] = field(default_factory=list)


class SizedPod(Struct):
    """What is read of a pod to resize it."""

    spec: SizedSpec = field(default_factory=SizedSpec)


class PodCondition(Protocol):
    """One line of a pod's state."""

    type: str
    status: str
    reason: str
    message: str


# -- limits of groups ---------------------------------------------------------------------------------


def resize_limits(cluster: Plain) -> tuple[dict[str, ResizeLimits], list[str]]:
    """Return the limits by group, and what is wrong with those that cannot be used, a sentence each."""
    text = ((cluster.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION)
    if not text:
        return {}, []
    try:
        wanted = json.loads(text)["groups"]
        entries = list(wanted.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, [f'annotation {ANNOTATION} is not JSON like {{"groups": {{...}}}}: no pod is resized']
    spec = cluster.get("spec") or {}
    groups = {one.get("groupName"): one for one in spec.get("workerGroupSpecs") or ()}
    groups[HEAD_GROUP] = spec.get("headGroupSpec") or {}
    found, problems = {}, []
    for name, entry in entries:
        try:
            found[name] = _limits(groups.get(name), entry)
        except ValueError as error:
            problems.append(f"annotation {ANNOTATION}, group {name}: {error}; its pods are not resized")
    return found, problems


def _limits(group: Plain | None, entry: object) -> ResizeLimits:
    if group is None:
        raise ValueError("the RayCluster has no such group")
    if not isinstance(entry, Mapping):
        raise ValueError("its entry is not a mapping")
    missing = [key for key in _FIELDS if key not in entry]
    if missing:
        raise ValueError(f"{' and '.join(missing)} is missing")
    _check_group(group)
    timeout_s = entry["resize-timeout"]
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0:
        raise ValueError(f"resize-timeout is {timeout_s!r}, not a number of seconds")
    most = {"CPU": quantity(entry["max-cpu"]), "memory": quantity(entry["max-memory"])}
    if min(most.values()) <= 0:
        raise ValueError("max-cpu and max-memory must be more than 0")
    return ResizeLimits(
        maximum=Resources.of({name: float(value) for name, value in most.items()}), timeout_s=float(timeout_s)
    )


def _check_group(group: Plain) -> None:
    """Raise ValueError for a group whose nodes would not count, or not survive, another size."""
    fixed = [key for key in ("num-cpus", "memory") if key in (group.get("rayStartParams") or {})]
    if fixed:
        raise ValueError(f"rayStartParams fix {' and '.join(fixed)}: remove them")
    containers = ((group.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    first = containers[0]
    requests = (first.get("resources") or {}).get("requests") or {}
    missing = [name for name in _NAMES if name not in requests]
    if missing:
        raise ValueError(f"its first container has no requests of {' and '.join(missing)}")
    for rule in first.get("resizePolicy") or ():
        if rule.get("resourceName") in _NAMES and rule.get("restartPolicy") != "NotRequired":
            raise ValueError(f"resizePolicy of {rule['resourceName']} must be NotRequired")


# -- where a pod stands -------------------------------------------------------------------------------


def resize_status(
    spec: Sequence[SizedContainer], status: Sequence[SizedContainer], conditions: Iterable[PodCondition]
) -> ResizeStatus | None:
    """Return the size of a pod's first container; None when it has none, or kubelet reports none yet."""
    desired = _size(spec[0].resources) if spec else {}
    current = _size(status[0].resources) if status else {}
    if not desired or not current:
        return None
    pending = _condition(conditions, _PENDING)
    moving = _condition(conditions, _IN_PROGRESS)
    shown = pending or moving
    has_failed = moving is not None and moving.reason.lower() == "error"
    return ResizeStatus(
        current=_resources(current),
        desired=_resources(desired),
        in_progress=not has_failed and (shown is not None or current != desired),
        failed=has_failed,
        suggested_maximum=None if pending is None else _suggestion(pending.message, spec),
        message="" if shown is None else f"{shown.reason}: {shown.message}".strip(": "),
    )


def _condition(conditions: Iterable[PodCondition], kind: str) -> PodCondition | None:
    return next((one for one in conditions if one.type == kind and one.status == "True"), None)


def _suggestion(message: str, spec: Sequence[SizedContainer]) -> Resources | None:
    """Return what the host could give instead, from the numbers in kubelet's message.

    It counts requests of whole pods, cpu in thousandths: what others use and the other containers request is
    taken off, and what the first container may use above its request is added.
    """
    found = _SHORTAGE.search(message)
    if found is None:
        return None
    name, unit = found[1], Decimal(1000) if found[1] == "cpu" else Decimal(1)
    room = (Decimal(found[4]) - Decimal(found[3] or 0)) / unit
    others = sum((_amounts(one.resources.requests).get(name, Decimal(0)) for one in spec[1:]), Decimal(0))
    most = room + _gap(spec[0].resources).get(name, Decimal(0)) - others
    return Resources.of({_NAMES[name]: float(max(most, Decimal(0)))})


def _size(sizes: ContainerSizes) -> Sizes:
    """Return the limits, or the requests where there are none."""
    return {**_amounts(sizes.requests), **_amounts(sizes.limits)}


def _gap(sizes: ContainerSizes) -> Sizes:
    """Return how much more a container may use than is kept for it."""
    requests = _amounts(sizes.requests)
    return {name: most - requests.get(name, most) for name, most in _amounts(sizes.limits).items()}


def _amounts(sizes: Mapping[str, Any] | None) -> Sizes:
    return {name: quantity(sizes[name]) for name in _NAMES if sizes and name in sizes}


def _resources(size: Sizes) -> Resources:
    return Resources.of({_NAMES[name]: float(value) for name, value in size.items()})


# -- the patch ----------------------------------------------------------------------------------------


def resize_patch(first: ContainerSizes, desired: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the JSON patch of `pods/<name>/resize`; what lies between request and limit is kept."""
    gap, limits = _gap(first), _amounts(first.limits)
    operations = []
    for name, ray_name in _NAMES.items():
        if ray_name not in desired:
            continue
        size = Decimal(str(desired[ray_name]))
        if name in limits:
            operations.append(_replace("limits", name, size))
        if name in (first.requests or {}):
            least = min(size, _LEAST[name])
            operations.append(_replace("requests", name, max(size - gap.get(name, Decimal(0)), least)))
    return operations


_LEAST = {"cpu": Decimal("0.001"), "memory": Decimal(1)}


def _replace(kind: str, name: str, size: Decimal) -> dict[str, Any]:
    value = f"{int(size * 1000)}m" if name == "cpu" else str(int(size))
    return {"op": "replace", "path": f"/spec/containers/0/resources/{kind}/{name}", "value": value}
