"""Wishes for a type that just failed are withdrawn, so that this very tick can plan them elsewhere."""

from __future__ import annotations

from muster.cluster.backoff import is_blocked
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState


def backoff(draft: Draft) -> None:
    """QUEUED records of a backed-off type cost nothing to cancel; what they were for is planned again."""
    for instance in draft.in_state(InstanceState.QUEUED):
        health = draft.health.get(instance.node_type)
        if health is not None and is_blocked(health, draft.now):
            reason = f"{instance.node_type} is backed off ({health.kind.value}: {health.message})"
            draft.move(instance, InstanceState.TERMINATED, f"withdrawn: {reason}")
