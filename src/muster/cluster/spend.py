"""Computes what machines cost, from the tick that found a machine to the tick that missed it."""

from __future__ import annotations

from collections.abc import Iterable

from muster.cluster.model import Instance
from muster.cluster.snapshot import Memory
from muster.cluster.states import ON_CLOUD, InstanceState


def cost_of(instance: Instance, now: float) -> float:
    """Returns the dollars of one record: its price from the arrival of its machine to its end or `now`."""
    started = next((change.at for change in instance.history if change.state in ON_CLOUD), None)
    if started is None or not instance.price_per_hour:
        return 0.0
    ended = instance.since if instance.state is InstanceState.TERMINATED else now
    return instance.price_per_hour * max(0.0, ended - started) / 3600.0


def spend_so_far(instances: Iterable[Instance], memory: Memory, now: float) -> float:
    """Returns the dollars of all machines: those that are gone (in memory) and those that live."""
    return memory.spent + sum(cost_of(i, now) for i in instances if i.state in ON_CLOUD)


def price_per_hour(instances: Iterable[Instance]) -> float:
    """Returns the dollars per hour of the live machines."""
    return sum(i.price_per_hour or 0.0 for i in instances if i.state in ON_CLOUD)
