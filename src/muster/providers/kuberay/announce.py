"""Show decisions in Kubernetes: Events, a condition, the spend, and annotations of busy pods.

The monitor calls it after each tick; the calls to the API server are made in the background. A right that the
service account lacks switches its part off, and is named once: the stock Role has those for the spend, and
since KubeRay 1.5 those for pods (deploy/kuberay/role.yaml has the others).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Protocol

from muster.cluster.cost import spend_so_far
from muster.cluster.model import NodeStatus
from muster.cluster.plan import Subject
from muster.cluster.ports import TickResult
from muster.cluster.snapshot import BudgetPeriod, Memory
from muster.providers.kuberay.client import MERGE_PATCH, KubePaths
from muster.providers.kuberay.effects import KubeEffects

SPEND = "muster/spend"  # annotation of the RayCluster: a new head's pod begins with it
CONDITION = "MusterScaling"
PROTECTED = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
SPEND_S, LEAST_SPEND = 60.0, 0.01  # the spend is written so often, when it has grown by so much
CALM_S = 10.0  # a node that is idle for so long is not protected any more
_MAX_TEXT = 1000


class LoggedEvent(Protocol):
    """One line of the cluster's log."""

    @property
    def at(self) -> float: ...
    @property
    def level(self) -> str: ...
    @property
    def message(self) -> str: ...


def recorded_spend(cluster: Mapping[str, Any]) -> Memory | None:
    """Return what an earlier head's pod had spent; None when the RayCluster does not say."""
    text = ((cluster.get("metadata") or {}).get("annotations") or {}).get(SPEND)
    try:
        found = json.loads(text) if text else None
        if found is None:
            return None
        period = BudgetPeriod(since=found["since"], spent_before=float(found["before"]))
        return Memory(spent=float(found["spent"]), budget_period=period)
    except (ValueError, TypeError, KeyError):
        return None


class ClusterAnnouncer:
    """A TickListener for one RayCluster."""

    def __init__(
        self, effects: KubeEffects, paths: KubePaths, newest: Callable[[], Sequence[LoggedEvent]]
    ) -> None:
        self._effects, self._paths, self._newest = effects, paths, newest
        self._spent: tuple[float, float] = (float("-inf"), 0.0)  # when it was written, and how much
        self._shown: Sequence[LoggedEvent] = ()
        self._condition: tuple[str, str] | None = None
        self._protected: dict[str, bool] = {}

    def on_tick(self, tick: TickResult) -> None:
        if tick.snapshot.traits.read_only:
            return
        self._write_spend(tick)
        self._write_events(tick)
        self._write_condition(tick)
        self._protect_pods(tick)

    def _write_spend(self, tick: TickResult) -> None:
        memory, now = tick.plan.memory, tick.plan.at
        spent = spend_so_far(tick.records, memory, now)
        is_due = now - self._spent[0] >= SPEND_S and abs(spent - self._spent[1]) >= LEAST_SPEND
        if tick.spec.budget is not None and is_due:
            period = memory.budget_period
            text = json.dumps(
                {"spent": round(spent, 4), "since": period.since, "before": period.spent_before}
            )
            self._spent = (now, spent)
            self._merge(self._paths.ray_cluster, {SPEND: text}, "the spend is not kept")

    def _write_events(self, tick: TickResult) -> None:
        newest = list(self._newest())
        fresh = [event for event in newest if not any(event is old for old in self._shown)]
        self._shown = newest
        for event in fresh:
            self._effects.announce(partial(self._post, event), "no Kubernetes Events")

    def _post(self, event: LoggedEvent) -> None:
        at = datetime.fromtimestamp(event.at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        paths, client = self._paths, self._effects.client
        found = client.get(paths.ray_cluster)
        about = {
            "apiVersion": f"ray.io/{paths.crd_version}",
            "kind": "RayCluster",
            "name": paths.cluster,
            "namespace": paths.namespace,
            "uid": found["metadata"].get("uid", ""),
        }
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{paths.cluster}-muster-", "namespace": paths.namespace},
            "involvedObject": about,
            "reason": "ScalingWarning" if event.level == "warning" else "Scaling",
            "message": event.message[:_MAX_TEXT],
            "type": "Warning" if event.level == "warning" else "Normal",
            "source": {"component": "muster"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        client.post(f"/api/v1/namespaces/{paths.namespace}/events", body)

    def _write_condition(self, tick: TickResult) -> None:
        """Say why the cluster is not scaled as its work asks for, or that it is."""
        about_cluster = [one for one in tick.plan.verdicts if one.subject is Subject.CLUSTER]
        words = about_cluster[0].reason.value.split("-") if about_cluster else ()
        reasons = "".join(word.title() for word in words)
        text = "; ".join(one.detail for one in about_cluster)[:_MAX_TEXT]
        if self._condition is not None and self._condition[0] == reasons:
            return  # figures in texts change at each tick
        self._condition = (reasons, text)
        status = "False" if reasons else "True"
        at = datetime.fromtimestamp(tick.plan.at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = {"type": CONDITION, "status": status, "reason": reasons or "Scaling", "message": text}
        made["lastTransitionTime"] = at
        self._effects.announce(partial(self._set_condition, made), "no condition of the RayCluster")

    def _set_condition(self, made: dict[str, str]) -> None:
        found = self._effects.client.get(self._paths.ray_cluster)
        status = found.get("status") or {}
        listed = [one for one in status.get("conditions") or () if one.get("type") != made["type"]]
        change = {
            "metadata": {"resourceVersion": found["metadata"].get("resourceVersion")},
            "status": {"conditions": [*listed, made]},  # behind the version: others have conditions, too
        }
        self._effects.client.patch(f"{self._paths.ray_cluster}/status", change, MERGE_PATCH)

    def _protect_pods(self, tick: TickResult) -> None:
        """Keep Karpenter and the cluster autoscaler away from pods whose nodes work."""
        runtime, cloud = tick.runtime, tick.snapshot.cloud
        if runtime is None or cloud is None:
            return
        known: dict[str, bool] = {}
        for node in runtime.nodes:
            name = node.cloud_id or ""
            if name in cloud and node.status in (NodeStatus.RUNNING, NodeStatus.IDLE) and not node.is_head:
                is_busy = node.status is NodeStatus.RUNNING
                was_busy = self._protected.get(name, False)
                known[name] = is_busy or (was_busy and node.idle_s < CALM_S)
        for name, is_busy in known.items():
            if self._protected.get(name, False) != is_busy:
                notes = {key: value if is_busy else None for key, value in PROTECTED.items()}
                self._merge(self._paths.pod(name), notes, "busy pods have no annotation")
        self._protected = known

    def _merge(self, path: str, notes: Mapping[str, str | None], what: str) -> None:
        change = {"metadata": {"annotations": dict(notes)}}
        self._effects.announce(partial(self._effects.client.patch, path, change, MERGE_PATCH), what)
