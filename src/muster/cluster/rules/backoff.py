"""Withdraws queued machines of what just failed, so that the same tick plans others for them."""

from __future__ import annotations

from muster.cluster.backoff import is_blocked
from muster.cluster.model import Instance, NodeType, health_key
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState


def backoff(draft: Draft) -> None:
    """Ends QUEUED records of a backed-off type or offer; nothing was bought for them yet.

    A record without an offer, of a type with offers, gets its offer when it is launched: it is withdrawn
    only when the offers that are left have no room for it.
    """
    left: dict[str, int] = {}
    for instance in draft.in_state(_S.QUEUED):
        known = draft.types.get(instance.node_type)
        reason = _failed(draft, instance) or (_gone(instance, known) if known is not None else "")
        if not reason and known is not None and known.offers and instance.offer is None:
            if known.name not in left:
                left[known.name] = sum(each.room for each in draft.choices_of(known))
            left[known.name] -= 1
            if left[known.name] < 0:
                reason = f"every offer of {known.name} is backed off or at its maximum"
        if reason:
            draft.move(instance, _S.TERMINATED, f"withdrawn: {reason}")


def _failed(draft: Draft, instance: Instance) -> str:
    for name in (instance.node_type, health_key(instance.node_type, instance.offer_name)):
        health = draft.health.get(name)
        if health is not None and is_blocked(health, draft.now):
            return f"{name} is backed off ({health.kind.value}: {health.message})"
    return ""


def _gone(instance: Instance, known: NodeType) -> str:
    offer = instance.offer_name
    if not offer or not known.offers or known.offer(offer) is not None:
        return ""
    return f"{known.name} is no longer offered as {offer}"
