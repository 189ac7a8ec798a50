"""KubeEffects resizes pods and stops the idle cluster in the background: no caller waits.

A verb that the service account lacks is named once, and what needs it stays off. A cluster is deleted behind
a finalizer, so that KubeRay can clean up after it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import yaml

from muster.base.ids import CloudId
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.model import FailureKind, IdleCluster, IdlePolicy, ResizeFailure
from muster.providers.kuberay.client import MERGE_PATCH, KubeClient, KubeError, KubePaths
from muster.providers.kuberay.pod_resize import SizedPod, resize_patch
from muster.providers.kuberay.watch import Routine, Steps

FINALIZER = "ray.io/idle-termination-cleanup-finalizer"
_POLICIES = {"Suspend": IdlePolicy.SUSPEND, "Delete": IdlePolicy.DELETE}

Plain = Mapping[str, Any]
IDLE = "muster/idle-termination"  # annotation: YAML with `timeoutSeconds` and `policy`


def idle_options(cluster: Plain) -> IdleCluster | None:
    """Return what the owner of a RayCluster asked for; None: nothing. ValueError names a wrong field.

    An annotation says it: no released CRD has the fields of Ray's pull request, and a server drops what its
    CRD does not have. They are read where they are there.
    """
    spec, section = cluster.get("spec") or {}, f"annotation {IDLE}"
    text = ((cluster.get("metadata") or {}).get("annotations") or {}).get(IDLE)
    try:
        options = yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        raise ValueError(f"{section} is not YAML: write timeoutSeconds and policy") from None
    if options is None:
        options, section = spec.get("idleTerminationOptions") or {}, "spec.idleTerminationOptions"
    if not isinstance(options, Mapping):
        raise ValueError(f"{section} is {options!r}: write timeoutSeconds and policy")
    where, timeout_s = f"{section}.timeoutSeconds", options.get("timeoutSeconds")
    if timeout_s is None and not text:
        where = "spec.autoscalerOptions.noDriverTimeoutSeconds"
        timeout_s = (spec.get("autoscalerOptions") or {}).get("noDriverTimeoutSeconds")
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s < 0:
        raise ValueError(f"{where} is {timeout_s!r}, not a number of seconds")
    policy = options.get("policy") or "Suspend"
    if policy not in _POLICIES:
        raise ValueError(f"{section}.policy is {policy!r}: write Suspend or Delete")
    return IdleCluster(timeout_s=float(timeout_s), policy=_POLICIES[policy])


def suspend_patch(cluster: Plain) -> dict[str, Any]:
    """Return the merge patch that suspends a cluster; every operator since 1.0 knows `suspend`."""
    is_newer = bool((cluster.get("spec") or {}).get("idleTerminationOptions"))
    return {"spec": {"idleSuspend" if is_newer else "suspend": True}}


def finalizer_patch(cluster: Plain) -> list[dict[str, Any]]:
    """Return the JSON patch that adds the finalizer to the object as it was read; empty when it has it."""
    metadata = cluster.get("metadata") or {}
    finalizers = metadata.get("finalizers") or []
    if FINALIZER in finalizers:
        return []
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion", "")},
        {"op": "add", "path": "/metadata/finalizers", "value": [*finalizers, FINALIZER]},
    ]


logger = logging.getLogger(__name__)

_FORBIDDEN, _NOT_FOUND = 403, 404
_QUIET_S = 3600.0  # until it is woken
_LATER = frozenset({0, 409, 429, 500, 502, 503, 504})  # what may succeed at another time


class KubeEffects:
    """Does one thing after the other; of several sizes of a pod that wait the newest counts."""

    def __init__(self, client: KubeClient, paths: KubePaths) -> None:
        self.client = self._client = client
        self._paths = paths
        self._off: set[str] = set()  # what was announced before a right turned out to be missing
        self._calls: deque[Callable[[], None]] = deque()
        self.routine = Routine("kuberay-effects", self._work())
        self._lock = threading.Lock()
        self._changes = OnChange(logger)
        self._sizes: dict[CloudId, Mapping[str, float]] = {}  # that wait to be sent
        self._failures: list[ResizeFailure] = []
        self._is_ending = False
        self.can_resize = True  # until a refusal says otherwise
        self.idle_policies: tuple[IdlePolicy, ...] = (IdlePolicy.SUSPEND, IdlePolicy.DELETE)

    def resize(self, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        """Start to resize a pod; what comes of it is seen in the pod, or polled as a failure."""
        with self._lock:
            is_waiting = cloud_id in self._sizes
            self._sizes[cloud_id] = dict(desired)
        if not is_waiting:
            self._submit(partial(self._resize, cloud_id))

    def end_cluster(self, policy: IdlePolicy) -> None:
        """Start to suspend or delete the cluster; one call at a time."""
        with self._lock:
            if self._is_ending or policy not in self.idle_policies:
                return
            self._is_ending = True
        self._submit(partial(self._end, policy))

    def poll_resize_failures(self) -> Sequence[ResizeFailure]:
        with self._lock:
            polled, self._failures = self._failures, []
        return polled

    def announce(self, call: Callable[[], object], otherwise: str) -> None:
        """Make a call that nothing depends on; `otherwise` is what is missing where it is not allowed."""
        if otherwise not in self._off:
            self._submit(partial(self._announce, call, otherwise))

    def _announce(self, call: Callable[[], object], otherwise: str) -> None:
        try:
            call()
        except KubeError as error:
            if error.code == _FORBIDDEN and otherwise not in self._off:
                self._off.add(otherwise)
                logger.info("%s: %s", otherwise, error)
            elif error.code not in (_NOT_FOUND, _FORBIDDEN, *_LATER):
                self._changes.log(logging.WARNING, otherwise, f"{otherwise}: {error}")
        except Exception as error:  # noqa: BLE001 - it must not end the routine
            self._changes.log(logging.WARNING, otherwise, f"{otherwise}: {error_text(error)}")

    def _submit(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self.routine.wake()

    def _work(self) -> Steps:
        while True:
            while self._calls:
                self._calls.popleft()()
                yield 0.0
            yield _QUIET_S

    def _resize(self, cloud_id: CloudId) -> None:
        with self._lock:
            desired = self._sizes.pop(cloud_id, {})
        path = self._paths.pod(cloud_id)
        try:
            pod = msgspec.convert(self._client.get(path), SizedPod, strict=False)
            operations = (
                resize_patch(pod.spec.containers[0].resources, desired) if pod.spec.containers else []
            )
            if operations:
                self._client.patch(f"{path}/resize", operations)
        except KubeError as error:
            self._fail(cloud_id, error)
        except Exception as error:  # noqa: BLE001 - it must come back as a failure, not end in a thread
            self._add(ResizeFailure(cloud_id=cloud_id, message=error_text(error)))

    def _fail(self, cloud_id: CloudId, error: KubeError) -> None:
        if error.code == _FORBIDDEN and self.can_resize:
            self.can_resize = False
            logger.warning("pods are not resized: %s", error)
        kind = FailureKind.CONFIG
        if error.code in _LATER:
            kind = FailureKind.THROTTLED
        elif error.code == _FORBIDDEN:
            kind = FailureKind.PERMISSION
        self._add(ResizeFailure(cloud_id=cloud_id, kind=kind, message=str(error)))

    def _add(self, failure: ResizeFailure) -> None:
        with self._lock:
            self._failures.append(failure)

    def _end(self, policy: IdlePolicy) -> None:
        end: Callable[[], None] = self._suspend if policy is IdlePolicy.SUSPEND else self._delete
        try:
            end()
            self._changes.log(
                logging.WARNING, "end", f"no driver uses the cluster: {policy.value} was asked for"
            )
        except KubeError as error:
            if error.code == _FORBIDDEN:
                self.idle_policies = tuple(one for one in self.idle_policies if one is not policy)
            self._changes.log(logging.WARNING, "end", f"the idle cluster stays ({policy.value}): {error}")
        except Exception as error:  # noqa: BLE001 - it is asked for again
            self._changes.log(logging.WARNING, "end", f"the idle cluster stays: {error_text(error)}")
        finally:
            with self._lock:
                self._is_ending = False

    def _suspend(self) -> None:
        cluster = self._client.get(self._paths.ray_cluster)
        self._client.patch(self._paths.ray_cluster, suspend_patch(cluster), MERGE_PATCH)

    def _delete(self) -> None:
        """Delete behind a finalizer. A conflict is met again at the next call, with a newer object.

        Whether it may is asked before: a finalizer on a cluster that stays keeps its owner from deleting it.
        """
        self._check_right_to_delete()
        try:
            operations = finalizer_patch(self._client.get(self._paths.ray_cluster))
            if operations:
                self._client.patch(self._paths.ray_cluster, operations)
            self._client.delete(self._paths.ray_cluster)
        except KubeError as error:
            if error.code != _NOT_FOUND:
                raise

    def _check_right_to_delete(self) -> None:
        paths = self._paths
        wanted = {
            "group": "ray.io",
            "resource": "rayclusters",
            "name": paths.cluster,
            "namespace": paths.namespace,
            "verb": "delete",
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = self._client.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not (answer.get("status") or {}).get("allowed"):
            text = "the service account may not delete rayclusters: apply deploy/kuberay/role.yaml"
            raise KubeError(text, code=_FORBIDDEN)
