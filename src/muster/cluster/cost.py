"""Compute what machines cost, from the tick that found a machine to the tick that missed it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster.cluster.model import Instance, Offer
from muster.cluster.snapshot import Memory
from muster.cluster.states import ON_CLOUD, InstanceState


def cost_of(instance: Instance, now: float) -> float:
    """Return the dollars of one record: its price from the start of its machine to its end or `now`."""
    arrived = next((change.at for change in instance.history if change.state in ON_CLOUD), None)
    if arrived is None or instance.is_queued or not instance.price_per_hour:
        return 0.0
    started = arrived if instance.dequeued_at is None else instance.dequeued_at
    ended = instance.since if instance.state is InstanceState.TERMINATED else now
    return instance.price_per_hour * billed_s(instance.offer, ended - started) / 3600.0


def billed_s(offer: Offer | None, used_s: float) -> float:
    """Return the seconds that are paid for a machine that was there for `used_s`."""
    if offer is None:
        return max(0.0, used_s)
    least_s = max(0.0, used_s, offer.billing_minimum_s)
    step_s = offer.billing_granularity_s
    # A little less than a whole step: 3600.0000001 s, from adding up, is one hour and not two.
    return math.ceil(least_s / step_s - 1e-9) * step_s if step_s > 0 else least_s


TYPICAL_S = 3600.0  # nobody knows for how long a machine that is launched now will serve


def billed_share(offer: Offer) -> float:
    """Return by how much more than its use a machine is paid for: half of a billing step on average."""
    used_s = max(TYPICAL_S, offer.billing_minimum_s)
    return (used_s + offer.billing_granularity_s / 2) / TYPICAL_S


def spend_so_far(instances: Iterable[Instance], memory: Memory, now: float) -> float:
    """Return the dollars of all machines: those that are gone (in memory) and those that live."""
    return memory.spent - memory.uncharged + sum(cost_of(i, now) for i in instances if i.state in ON_CLOUD)


MOST_CHARGED_S = 3600.0  # of the time between two boots: longer than a reboot takes


def unseen_s(passed_s: float) -> float:
    """Return how much of the time that passed by the wall clock alone, on another boot, is not charged."""
    return max(0.0, passed_s - MOST_CHARGED_S)


def uncharged(instances: Iterable[Instance], now: float, unseen_s: float) -> float:
    """Return the dollars of the last `unseen_s` before `now`."""
    live = [i for i in instances if i.state in ON_CLOUD] if unseen_s else []
    return sum(cost_of(i, now) - cost_of(i, now - unseen_s) for i in live)


def price_per_hour(instances: Iterable[Instance]) -> float:
    """Return the dollars per hour of the live machines."""
    return sum(i.price_per_hour or 0.0 for i in instances if i.state in ON_CLOUD and not i.is_queued)
