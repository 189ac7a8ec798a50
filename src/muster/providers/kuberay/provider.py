"""KubeRayProvider is the cloud of a RayCluster: pods are machines, and one patch at a time asks for changes.

The loop's thread never waits for the API server: the pods are watched by a thread, and another one reads the
RayCluster and patches it. Each patch is built from a read that is newer than the patch before. Where the
rights are there the RayCluster is watched, too, and read before a patch only.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.ids import CloudId, RequestId
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.model import (
    CloudInstance,
    FailureKind,
    IdlePolicy,
    LaunchFailure,
    Notice,
    NoticeKind,
    Offer,
    ResizeFailure,
    TerminateFailure,
)
from muster.cluster.ports import CloudProvider, NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.errors import MusterError
from muster.providers.kuberay.client import KubeClient, KubeError, KubePaths, KubeUnreachable
from muster.providers.kuberay.effects import KubeEffects
from muster.providers.kuberay.pod_resize import resize_limits
from muster.providers.kuberay.pod_watch import PodsNotKnown, PodWatch
from muster.providers.kuberay.pods import Pod
from muster.providers.kuberay.scaling import PatchRequest, ScalePatch, guards, scale_patch, worker_groups
from muster.providers.kuberay.watch import RETRY_S, ClusterObject, ClusterWatch, Routine, Steps
from muster.providers.machines import ClusterMachines

logger = logging.getLogger(__name__)

OURS = "ray.io/kuberay-operator"  # `managedBy` of a cluster that this operator runs
TRIES = 8  # of one patch, in a row: each conflict is answered with a newer read
BY_VERSION = 4  # of them behind the object's version, the others behind the values that are written
GATHER_S = 0.03  # a tick hands over several requests one after the other: they become one patch
QUIET_S = 30.0  # without ticks the object is still read so often
_CONFLICTS = frozenset({409, 422})
_KINDS = {  # 401 is not here: no request is at fault, and fresh credentials help all of them
    403: FailureKind.PERMISSION,
    404: FailureKind.CONFIG,
    422: FailureKind.CONFIG,
    429: FailureKind.THROTTLED,
}
_MAX_DONE = 10_000


class ScaleQueue:
    """Holds what is to be patched, and what came of it. Its lock is never held while waiting."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.launches: dict[RequestId, dict[str, int]] = {}
        self.ends: dict[RequestId, list[CloudId]] = {}
        self._done: dict[RequestId, None] = {}  # what was patched, oldest first: it is not asked for again
        self._launch_failures: list[LaunchFailure] = []
        self._terminate_failures: list[TerminateFailure] = []

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        with self.lock:
            if request_id not in self._done:
                wanted = {name: count for name, count in shape.items() if count > 0}
                self.launches.setdefault(request_id, wanted)

    def end(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        """Take pods to end; a later request for a pod stands for the earlier ones."""
        with self.lock:
            if request_id in self.ends or request_id in self._done:
                return
            kept = {r: [one for one in ids if one not in cloud_ids] for r, ids in self.ends.items()}
            self.ends = {r: ids for r, ids in kept.items() if ids}
            self.ends[request_id] = list(cloud_ids)

    def waiting(self) -> PatchRequest | None:
        """Return all that is asked for; None when nothing is."""
        with self.lock:
            if not self.launches and not self.ends:
                return None
            ends = frozenset(one for ids in self.ends.values() for one in ids)
            return PatchRequest(launches={r: dict(s) for r, s in self.launches.items()}, ends=ends)

    def is_open(self, request_id: RequestId) -> bool:
        """Return whether the request waits, or has failures that were not polled."""
        with self.lock:
            failed = any(one.request_id == request_id for one in self._launch_failures)
            return failed or request_id in self.launches or request_id in self.ends

    def settle(self, request: PatchRequest, patch: ScalePatch) -> None:
        """The patch is in force: what it asked for is done; the rest has failed, or is still held."""
        with self.lock:
            for request_id in request.launches:
                self.launches.pop(request_id, None)
                self._done[request_id] = None
                self._fail_launch(request_id, patch)
            for name, group in patch.ownerless.items():
                text = _NO_OWNER.format(group)
                failure = TerminateFailure(cloud_id=CloudId(name), kind=FailureKind.CONFIG, message=text)
                self._terminate_failures.append(failure)
            for request_id, ids in list(self.ends.items()):
                left = [one for one in ids if one in patch.held or one not in request.ends]
                if left:
                    self.ends[request_id] = left
                else:
                    del self.ends[request_id]
                    self._done[request_id] = None
            while len(self._done) > _MAX_DONE:
                del self._done[next(iter(self._done))]

    def _fail_launch(self, request_id: RequestId, patch: ScalePatch) -> None:
        for reasons, kind, text in (
            (patch.refused, FailureKind.CAPACITY, _AT_MOST),
            (patch.unknown, FailureKind.CONFIG, _NO_GROUP),
            (patch.gated, FailureKind.QUOTA, _GATED),
        ):
            for group, count in reasons.get(request_id, {}).items():
                self._refuse(request_id, group, count, kind, text.format(group))

    def _refuse(self, request_id: RequestId, group: str, count: int, kind: FailureKind, text: str) -> None:
        failure = LaunchFailure(request_id=request_id, node_type=group, kind=kind, message=text)
        self._launch_failures += [failure] * count

    def fail(self, request: PatchRequest, kind: FailureKind, message: str) -> None:
        """The API server refuses: the requests end, with a reason."""
        with self.lock:
            for request_id in request.launches:
                for group, count in self.launches.pop(request_id, {}).items():
                    self._refuse(request_id, group, count, kind, message)
            for ids in self.ends.values():
                self._terminate_failures += [
                    TerminateFailure(cloud_id=one, kind=kind, message=message) for one in ids
                ]
            self.ends.clear()

    def poll_launch(self) -> Sequence[LaunchFailure]:
        with self.lock:
            polled, self._launch_failures = self._launch_failures, []
        return polled

    def poll_terminate(self) -> Sequence[TerminateFailure]:
        with self.lock:
            polled, self._terminate_failures = self._terminate_failures, []
        return polled


_AT_MOST = "group {} is at its maxReplicas, or suspended: raise maxReplicas of the RayCluster"
_GATED = "group {} has a scaleGate: its owner removes it when there is quota"
_NO_OWNER = "group {} is no longer in the RayCluster: add it again, or delete the pod"
_NO_GROUP = "the RayCluster has no group {}: add it to workerGroupSpecs"


class SparePods:
    """A SparePods counts, per group, pods that come and that nobody has asked for.

    The operator replaces a pod that ended by itself, and makes all hosts of a slice: a launch takes those
    first, or the cluster would grow by one for each.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.gone: dict[str, str] = {}  # pods that ended by themselves, and their groups
        self._known: dict[str, Pod] | None = None

    def note(self, pods: Mapping[str, Pod], named: frozenset[str]) -> None:
        """Take a list of pods; `named` were to be deleted."""
        living = {name: pod for name, pod in pods.items() if pod.is_worker and pod.is_living}
        if self._known is not None:
            for name, pod in self._known.items():
                if name not in living and name not in named:
                    self.counts[pod.group] = self.counts.get(pod.group, 0) + 1
                    self.gone[name] = pod.group
            for name, pod in living.items():
                if name not in self._known and self.counts.get(pod.group, 0) > 0:
                    self.counts[pod.group] -= 1
        self._known = living


class Scaler:
    """Reads and patches the RayCluster, one request at a time; `step` is one round of it."""

    def __init__(
        self, client: KubeClient, paths: KubePaths, pods: Callable[[], Mapping[str, Pod]], clock: Clock
    ) -> None:
        self._client, self._paths, self._pods, self._clock = client, paths, pods, clock
        self.cluster = ClusterObject(client, paths, clock)
        self.watch = ClusterWatch(client, paths, self.cluster)
        self.queue = ScaleQueue()
        self.confirmed: frozenset[str] | None = None  # pods that the newest read of the RayCluster came after
        self.listed: frozenset[str] | None = None  # pods that the loop knows of
        self._spare = SparePods()
        self._ended_names: dict[str, None] = {}  # pods that a patch has named, newest last
        self._changes = OnChange(logger)
        self.routine = Routine("kuberay-scale", self._work())

    def wake(self) -> None:
        """Ask for a read of the cluster, and for a patch when something waits."""
        self.routine.wake()

    def _work(self) -> Steps:
        pause_s = RETRY_S[0]
        while True:
            yield QUIET_S
            if self.queue.waiting() is not None:
                yield from self._hold(GATHER_S)
            try:
                self.step()
                pause_s = RETRY_S[0]
                self._changes.forget("scale")
            except Exception as error:  # noqa: BLE001 - reported, and tried again
                if not isinstance(error, KubeUnreachable):  # which the client logs
                    self._changes.log(logging.WARNING, "scale", f"the RayCluster: {error_text(error)}")
                yield from self._hold(getattr(error, "retry_after_s", None) or pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
                self.wake()

    def _hold(self, seconds: float) -> Steps:
        """Rest for the whole time, also when it is woken."""
        until = self._clock.monotonic() + seconds
        while (left_s := until - self._clock.monotonic()) > 0:
            yield left_s

    def step(self) -> None:
        """Read the cluster, and patches it when something waits. Raises KubeError to be called again.

        Nothing is read where nothing waits and changes come by themselves.
        """
        if self.queue.waiting() is None and self.watch.is_current() and self._names() == self.confirmed:
            with contextlib.suppress(PodsNotKnown):
                self._note_pods()
            return
        names = self._names()
        try:
            cluster = self.cluster.read()
        except KubeError as error:
            self._give_up(error)
            raise
        self.confirmed = names
        for attempt in range(TRIES):
            request = self.queue.waiting()
            if request is None:
                with contextlib.suppress(PodsNotKnown):  # whoever lists them gets the error
                    self._note_pods()
                return
            if self._try(cluster, request, by_version=attempt < BY_VERSION):
                return
            cluster = self.cluster.read()
        raise KubeError(
            f"the RayCluster was changed by others during {TRIES} patches in a row: it is tried again",
            code=409,
        )

    def _names(self) -> frozenset[str] | None:
        """Return the pods that are known; those of the newest read when they cannot be listed."""
        try:
            return frozenset(self._pods())
        except MusterError:
            return self.confirmed

    def named(self) -> frozenset[str]:
        """Return the pods that a patch has named, and others that the RayCluster names, as last read."""
        groups = worker_groups(self.cluster.last() or {}).values()
        return frozenset((*(name for group in groups for name in group.to_delete), *tuple(self._ended_names)))

    def _note_pods(self) -> Mapping[str, Pod]:
        pods, listed = self._pods(), self.listed
        self._spare.note(
            {name: pod for name, pod in pods.items() if listed is None or name in listed}, self.named()
        )
        return pods

    def _try(self, cluster: dict[str, Any], request: PatchRequest, *, by_version: bool) -> bool:
        """Return whether the request is settled; False after a conflict."""
        pods = self._note_pods()
        unlisted = frozenset() if self.listed is None else pods.keys() - self.listed
        gone = Counter(group for name, group in self._spare.gone.items() if name in request.ends)
        request = replace(request, spare=dict(self._spare.counts), gone=gone, unlisted=unlisted)
        patch = scale_patch(cluster, pods, request)
        if patch.operations:
            operations = guards(cluster, patch.operations, by_version=by_version)
            try:
                self._client.patch(self._paths.ray_cluster, operations)
            except KubeError as error:
                if error.code in _CONFLICTS and self._has_changed(cluster, error):
                    return False
                self._give_up(error)
                raise
            self._log(cluster, patch)
        self._spare.counts = dict(patch.spare)
        grown = {group for shape in request.launches.values() for group in shape} - patch.spare.keys()
        left = {n: one for n, one in self._spare.gone.items() if n not in request.ends and one not in grown}
        self._spare.gone = dict(list(left.items())[-_MAX_DONE:])
        self._ended_names = dict.fromkeys([*self._ended_names, *request.ends][-_MAX_DONE:])
        self.queue.settle(request, patch)
        return True

    def _has_changed(self, cluster: Mapping[str, Any], error: KubeError) -> bool:
        """A refusal is a conflict if the object is another by now; else it can never be accepted as it is."""
        before = cluster.get("metadata", {}).get("resourceVersion")
        now = self.cluster.read().get("metadata", {}).get("resourceVersion")
        return error.code == 409 or before != now

    def _give_up(self, error: KubeError) -> None:
        """Requests that are refused for good end with a reason; all others wait for the next try."""
        request = self.queue.waiting()
        kind = _KINDS.get(error.code)
        if request is not None and kind is not None and kind is not FailureKind.THROTTLED:
            self.queue.fail(request, kind, str(error))

    def _log(self, cluster: Mapping[str, Any], patch: ScalePatch) -> None:
        names = [group.name for group in worker_groups(cluster).values()]
        for operation in patch.operations:
            parts = operation["path"].split("/")
            if parts[1] == "spec":
                value = operation["value"]
                shown = value.get("workersToDelete") if isinstance(value, dict) else value
                logger.info("group %s: %s is %s", names[int(parts[3])], "/".join(parts[4:]), shown)


def why_untouched(cluster: Mapping[str, Any]) -> str:
    """Return why a RayCluster is left alone: it is being deleted, suspended, or managed by others."""
    spec, metadata = cluster.get("spec") or {}, cluster.get("metadata") or {}
    manager = spec.get("managedBy")
    if isinstance(manager, str) and manager not in ("", OURS):
        return f"the RayCluster is managed by {manager}"
    if metadata.get("deletionTimestamp"):
        return "the RayCluster is being deleted"
    return "the RayCluster is suspended" if spec.get("suspend") is True else ""


class KubeRayProvider(ClusterMachines, CloudProvider):
    """The port; `start` begins to watch."""

    def __init__(self, client: KubeClient, paths: KubePaths, clock: Clock | None = None) -> None:
        self.client, self.paths, clock = client, paths, clock or SystemClock()
        client.logs_outages = True
        self._watch = PodWatch(client, paths, clock)
        self.scaler = Scaler(client, paths, self._watch.pods, clock)
        self.effects = KubeEffects(client, paths)
        self.routines = tuple(
            each.routine for each in (self._watch, self.scaler.watch, self.scaler, self.effects)
        )
        self._changes = OnChange(logger)
        self._shown: set[str] = set()  # pods that were listed before they began to leave

    def start(self) -> None:
        for routine in self.routines:
            routine.start()
        self.scaler.wake()

    def close(self) -> None:
        """Leave the pods as they are; what was not patched yet is repeated by the next process."""
        for each in (self.scaler.routine, self.effects.routine, self.scaler.watch, self._watch):
            each.close()
        self.client.close()

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of the cluster, those that leave included."""
        return self._watch.pods()

    def traits(self) -> ProviderTraits:
        """A cluster that is not ours to scale now is only looked at; why is logged."""
        cluster = self.scaler.cluster.last() or {}
        why = why_untouched(cluster)
        if why:
            self._changes.log(logging.WARNING, "untouched", f"nothing is launched or removed: {why}")
        else:
            self._changes.forget("untouched")
        return ProviderTraits(
            read_only=bool(why),
            installs_runtime=True,
            resizable=self.effects.can_resize and bool(resize_limits(cluster)[0]),
            idle_policies=self.effects.idle_policies,
            refills_minimums=True,
        )

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Return the pods that have not ended; one that is being deleted stays until it is gone.

        One that was being deleted when it was first seen does not answer a request, and is left out. So is
        one that came after the RayCluster was read: an edit that the loop does not know may ask for it.
        """
        self.scaler.wake()
        pods, confirmed = self._watch.pods(), self.scaler.confirmed
        if confirmed is None:
            raise PodsNotKnown(f"the RayCluster {self.paths.cluster} was not read since its pods were listed")
        own = self.scaler.named()
        for name, pod in pods.items():
            if (pod.ended or pod.leaving) and name not in own:
                what = f"ended: {pod.ended}" if pod.ended else f"is being deleted: {pod.leaving}"
                self._changes.log(logging.WARNING, name, f"pod {name} {what}")
        shown = {
            name
            for name, pod in pods.items()
            if (pod.is_living and name in confirmed) or (name in self._shown and not pod.ended)
        }
        self._shown, self.scaler.listed = shown, frozenset(shown)
        return {CloudId(name): pods[name].machine for name in pods if name in shown}

    def notice_source(self) -> KubeRayProvider:
        return self

    def read(self) -> NoticeReport:
        """Return the pods that others take away: deleted, evicted or preempted; their nodes are drained."""
        named = self.scaler.named()
        return NoticeReport(
            notices=tuple(
                Notice(
                    cloud_id=pod.name,
                    kind=NoticeKind.INTERRUPTION,
                    deadline=pod.leaves_at,
                    source=pod.leaving,
                )
                for name, pod in self._watch.pods().items()
                if pod.leaves_at is not None and pod.is_worker and not pod.ended and name not in named
            )
        )

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        self.scaler.queue.launch(request_id, shape)
        self.scaler.wake()

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self.scaler.queue.end(request_id, cloud_ids)
        self.scaler.wake()

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        self.effects.resize(cloud_id, desired)

    def poll_resize_failures(self) -> Sequence[ResizeFailure]:
        return self.effects.poll_resize_failures()

    def end_idle_cluster(self, request_id: RequestId, policy: IdlePolicy) -> None:
        self.effects.end_cluster(policy)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self.scaler.queue.poll_launch()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self.scaler.queue.poll_terminate()

    def under_way(self, request_id: RequestId) -> bool:
        """Return whether the request has not reached the RayCluster yet."""
        return self.scaler.queue.is_open(request_id)
