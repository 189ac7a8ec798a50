"""Check that a set-up which fails pauses its type or offer, and that machines are then tried one by one."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.cluster import FaultyCluster

from muster.cluster.model import Instance, health_key
from muster.cluster.plan import Launch, Plan, base_id
from muster.cluster.states import InstanceState

_S = InstanceState
_UNDER_WAY = (_S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING)


def is_tried(cluster: FaultyCluster, plan: Plan, key: str) -> bool:
    """Return whether a machine under way tries what could not be set up lately: no other is launched."""
    health = plan.memory.health.get(key)
    return health is not None and health.is_on_trial and bool(_under_way(cluster, key, plan.at))


def _under_way(cluster: FaultyCluster, key: str, at: float) -> list[Instance]:
    """Return the machines that try it; one that is only kept for a node that may be there tries nothing."""
    limits = cluster.spec.spec.timeouts
    within_s = {_S.ALLOCATED: limits.allocate_s, _S.RAY_INSTALLING: limits.install_s}
    return [
        record
        for record in cluster.store.live.values()
        if health_key(record.node_type, record.offer_name) == key
        and record.state in _UNDER_WAY
        and at - record.since <= within_s.get(record.state, float("inf"))
    ]


class FailedSetupsPause:
    """FailedSetupsPause limits launches from what could not be set up, until a newer machine comes up.

    Times are those of the decisions, so a clock that jumps excuses nothing and accuses nobody.
    """

    def __init__(self) -> None:
        self._failed_at: dict[str, float] = {}
        self._heads = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if len(cluster.restored_at) != self._heads:  # a new head has an older memory
            self._heads = len(cluster.restored_at)
            self._failed_at.clear()
        for commit in cluster.store.commits:
            for record in commit.plan.writes:
                self._follow(record, commit.plan.at)
            for action in commit.plan.actions:
                if isinstance(action, Launch) and base_id(action.request_id) == action.request_id:
                    yield from self._launched(cluster, action, commit.plan.at)

    def _follow(self, record: Instance, at: float) -> None:
        key = health_key(record.node_type, record.offer_name)
        entered = [change.state for change in record.history if change.at == at]
        if _S.RAY_INSTALL_FAILED in entered:
            self._failed_at[key] = at
        asked = max(record.entered(_S.REQUESTED), default=float("-inf"))
        if _S.RAY_RUNNING in entered and asked > self._failed_at.get(key, float("inf")):
            del self._failed_at[key]

    def _launched(self, cluster: FaultyCluster, action: Launch, at: float) -> Iterator[str]:
        pause_s = cluster.spec.spec.backoff.user_action_base_s
        for name, count in action.shape.items():
            key = health_key(name, action.offer.name if action.offer is not None else "")
            failed_at = self._failed_at.get(key)
            if failed_at is None:
                continue
            if at - failed_at < pause_s:
                yield f"{key} was asked for {at - failed_at:g} s after a set-up failed"
            asked = [max(one.entered(_S.REQUESTED), default=0.0) for one in _under_way(cluster, key, at)]
            alike = [time for time in asked if time > failed_at]
            if count > 1 or len(alike) > 1:
                yield f"{key}: {len(alike)} machines on trial at once after a set-up failed"
