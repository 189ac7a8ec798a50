"""Withdraws queued machines of a type that just failed, so that the same tick plans others for them."""

from __future__ import annotations

from muster.cluster.backoff import is_blocked
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState


def backoff(draft: Draft) -> None:
    """Ends QUEUED records of a backed-off type; nothing was bought for them yet."""
    for instance in draft.in_state(InstanceState.QUEUED):
        health = draft.health.get(instance.node_type)
        if health is not None and is_blocked(health, draft.now):
            reason = f"{instance.node_type} is backed off ({health.kind.value}: {health.message})"
            draft.move(instance, InstanceState.TERMINATED, f"withdrawn: {reason}")
