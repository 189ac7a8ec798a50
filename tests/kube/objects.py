"""The objects of the API server for tests: resource versions, JSON patches, selectors, a history to watch."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

Object = dict[str, Any]
HISTORY = 5000  # changes that a watch may begin before the newest


class Refused(Exception):
    """A request that the server answers with a Status object."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- JSON patch -------------------------------------------------------------------------------------


def patched(target: Any, operations: Any) -> Any:
    """Apply RFC 6902 as the API server does: a failed test or a missing path refuses the whole patch."""
    if not isinstance(operations, list):
        raise Refused(400, "BadRequest", "error decoding patch: expected a list of operations")
    result = copy.deepcopy(target)
    for operation in operations:
        _apply(result, operation)
    return result


def _apply(root: Any, operation: Object) -> None:
    op, path = operation.get("op"), operation.get("path", "")
    steps = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    try:
        place = root
        for step in steps[:-1]:
            place = place[int(step)] if isinstance(place, list) else place[step]
        key: Any = steps[-1]
        if isinstance(place, list):
            key = len(place) if key == "-" else int(key)
        if op == "test":
            assert place[key] == operation["value"]
        elif op == "add" and isinstance(place, list):
            place.insert(key, operation["value"])
        elif op == "add":
            place[key] = operation["value"]
        elif op == "replace":
            place[key]
            place[key] = operation["value"]
        elif op == "remove":
            del place[key]
        else:
            raise Refused(400, "BadRequest", f"unexpected op {op!r}")
    except (KeyError, IndexError, TypeError, ValueError, AssertionError):
        raise Refused(
            422, "Invalid", "the server rejected our request due to an error in our request"
        ) from None


def merged(target: Any, change: Any) -> Any:
    """Apply RFC 7386; strategic merge patches of labels and annotations mean the same."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


Path = tuple[str, ...]


def _leaves(value: Any, path: Path = ()) -> list[Path]:
    """Return the fields of an object; a list is one field."""
    if not isinstance(value, dict) or not value:
        return [path]
    return [leaf for key, one in value.items() for leaf in _leaves(one, (*path, key))]


def applied(before: Object, given: Object, manager: str) -> Object:
    """Apply an object for a field manager: fields of its last one that are not in this one go."""
    named = {key: given["metadata"][key] for key in ("labels", "annotations") if key in given["metadata"]}
    wanted = {"metadata": named, "spec": given.get("spec") or {}} if named else {"spec": given.get("spec")}
    after = merged(copy.deepcopy(before), wanted)
    entries = list(after["metadata"].get("managedFields") or [])
    owned = {entry["manager"]: [tuple(path) for path in entry["paths"]] for entry in entries}
    fields = _leaves(wanted)
    kept = {path for name, paths in owned.items() if name != manager for path in paths}
    for path in owned.get(manager, []):
        if path not in fields and path not in kept:
            _remove(after, path)
    owned[manager] = fields
    after["metadata"]["managedFields"] = [
        {"manager": name, "operation": "Apply", "paths": [list(path) for path in paths]}
        for name, paths in owned.items()
    ]
    return after


def _remove(root: Object, path: Path) -> None:
    place: Any = root
    for step in path[:-1]:
        place = place.get(step) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place.pop(path[-1], None)
        if not place and len(path) > 2:
            _remove(root, path[:-1])


# -- selectors --------------------------------------------------------------------------------------

_SET = re.compile(r"^([^\s!=,]+)\s+(in|notin)\s+\(([^)]*)\)$")


def matches(labels: dict[str, str], selector: str) -> bool:
    return all(_holds(labels, one.strip()) for one in re.split(r",(?![^(]*\))", selector) if one.strip())


def _holds(labels: dict[str, str], term: str) -> bool:
    found = _SET.match(term)
    if found:
        inside = labels.get(found[1]) in [one.strip() for one in found[3].split(",")]
        return inside if found[2] == "in" else not inside
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        if sign in term:
            key, value = term.split(sign, 1)
            return (labels.get(key.strip()) == value.strip()) is equal
    return term[1:].strip() not in labels if term.startswith("!") else term in labels


# -- the store --------------------------------------------------------------------------------------


class Store:
    """All objects by (resource, namespace, name); every change gets the next resource version."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.changed = threading.Condition()
        self.version = 1000
        self.oldest = 1000  # a watch may begin here or later
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []  # version, resource, kind of event, object

    def find(self, resource: str, namespace: str, name: str) -> Object:
        found = self.objects.get((resource, namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)
        return found

    def select(self, resource: str, namespace: str, selector: str) -> list[Object]:
        return [
            one
            for (kind, where, _), one in sorted(self.objects.items())
            if kind == resource
            and where == namespace
            and matches(one["metadata"].get("labels") or {}, selector)
        ]

    def create(self, resource: str, namespace: str, given: Object) -> Object:
        made = copy.deepcopy(given)
        metadata = made.setdefault("metadata", {})
        if not metadata.get("name"):
            metadata["name"] = metadata.get("generateName", "object-") + uuid.uuid4().hex[:5]
        if (resource, namespace, metadata["name"]) in self.objects:
            raise Refused(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        metadata.update(
            namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=timestamp(self._now()), generation=1
        )
        if resource == "pods":
            made.setdefault("status", {}).setdefault("phase", "Pending")
            made.setdefault("spec", {}).setdefault("terminationGracePeriodSeconds", 30)
        self._put("ADDED", resource, made)
        return made

    def replace(self, resource: str, before: Object, after: Object) -> Object:
        """Store a changed object; what the server owns cannot be changed."""
        fixed = ("uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "generation")
        metadata = after["metadata"] = dict(after.get("metadata") or {})
        asked = metadata.get("resourceVersion")
        if asked not in (None, before["metadata"]["resourceVersion"]):
            raise Refused(409, "Conflict", "the object has been modified; please apply your changes again")
        for key in fixed:
            metadata.pop(key, None)
            if key in before["metadata"]:
                metadata[key] = before["metadata"][key]
        metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        if after == before:
            return before  # nothing changed: no new version, no event
        if after.get("spec") != before.get("spec"):
            metadata["generation"] = before["metadata"].get("generation", 1) + 1
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and resource != "pods":
            return self._drop(resource, after)
        return self._put("MODIFIED", resource, after)

    def delete(self, resource: str, found: Object, grace_s: int | None = None) -> Object:
        """A pod on a node stays, with a deletion timestamp, until its kubelet deletes it without grace."""
        metadata = found["metadata"]
        if grace_s is None:
            grace_s = found["spec"].get("terminationGracePeriodSeconds", 30) if resource == "pods" else 0
        on_node = resource == "pods" and found["spec"].get("nodeName") and grace_s > 0
        if not on_node and not metadata.get("finalizers"):
            return self._drop(resource, found)
        if metadata.get("deletionTimestamp"):
            return found
        marked = copy.deepcopy(found)
        ends_at = timestamp(self._now() + grace_s)
        marked["metadata"].update(deletionTimestamp=ends_at, deletionGracePeriodSeconds=grace_s)
        return self._put("MODIFIED", resource, marked)

    def forget_history(self) -> None:
        """A watch from an earlier version is refused from now on, as after a compaction of etcd."""
        with self.changed:
            self.oldest = self.version + 1
            self.history.clear()
            self.version += 1
            self.changed.notify_all()

    def _put(self, event: str, resource: str, one: Object) -> Object:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.objects[resource, one["metadata"]["namespace"], one["metadata"]["name"]] = one
        return self._note(event, resource, one)

    def _drop(self, resource: str, one: Object) -> Object:
        self.version += 1
        gone = copy.deepcopy(one)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.objects.pop((resource, gone["metadata"]["namespace"], gone["metadata"]["name"]), None)
        return self._note("DELETED", resource, gone)

    def _note(self, event: str, resource: str, one: Object) -> Object:
        self.history.append((self.version, resource, event, copy.deepcopy(one)))
        if len(self.history) > HISTORY:
            self.oldest = self.history[HISTORY // 10][0]
            del self.history[: HISTORY // 10]
        self.changed.notify_all()
        return one


# -- the schema of a RayCluster ---------------------------------------------------------------------


def check_ray_cluster(given: Object) -> None:
    """Refuse what the schema of the CRD refuses, as far as muster writes it."""
    problems = []
    for index, group in enumerate(given.get("spec", {}).get("workerGroupSpecs") or []):
        where = f"spec.workerGroupSpecs[{index}]"
        if not isinstance(group.get("groupName"), str):
            problems.append(f"{where}.groupName: Required value")
        for key in ("replicas", "minReplicas", "maxReplicas", "numOfHosts"):
            value = group.get(key, 0)
            if not isinstance(value, int) or isinstance(value, bool):
                problems.append(f'{where}.{key}: Invalid value: "{type(value).__name__}": must be integer')
        names = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            problems.append(f"{where}.scaleStrategy.workersToDelete: Invalid value: must be strings")
    if problems:
        name = given.get("metadata", {}).get("name", "")
        raise Refused(
            422, "Invalid", f'RayCluster.ray.io "{name}" is invalid: {"; ".join(problems)}', name=name
        )


_SPEC = (
    *("authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions"),
    *("headGroupSpec", "headServiceAnnotations", "managedBy", "networkPolicy", "rayVersion", "suspend"),
    *("tlsOptions", "upgradeStrategy", "workerGroupSpecs"),
)
_AUTOSCALER = (
    *("args", "command", "env", "envFrom", "idleTimeoutSeconds", "image", "imagePullPolicy", "resources"),
    *("securityContext", "upscalingMode", "version", "volumeMounts"),
)


def prune_ray_cluster(given: Object) -> None:
    """Drop the fields of `spec` and of `autoscalerOptions` that the CRD of KubeRay 1.7 does not have."""
    spec = given.get("spec") or {}
    for section, known in ((spec, _SPEC), (spec.get("autoscalerOptions") or {}, _AUTOSCALER)):
        for key in [key for key in section if key not in known]:
            del section[key]
