"""How long until the next tick: soon while things move, later and later while nothing does; pure.

The monitor asks after every tick. Between ticks it compares `wishes` to see whether it must not wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from muster.autoscaler.tick import Tick
from muster.cluster.model import NodeReport, NodeStatus, RuntimeReport
from muster.cluster.states import InstanceState

_SETTLED = frozenset({InstanceState.RAY_RUNNING})
_AFTER_S = 0.1  # a limit must be passed, not only reached
_GONE = frozenset({NodeStatus.DEAD, NodeStatus.DRAINING})


class TickInterval:
    """The interval doubles from `base_s` to `max_s` while the picture stays the same."""

    def __init__(self, base_s: float, max_s: float) -> None:
        self.base_s, self.max_s = base_s, max(base_s, max_s)
        self._interval_s = base_s
        self._picture: object = None

    def change(self, base_s: float, max_s: float) -> None:
        """Other bounds, from the next tick on; the pauses begin at the shortest again."""
        self.base_s, self.max_s = base_s, max(base_s, max_s)
        self._interval_s = base_s

    def after(self, tick: Tick) -> float:
        """Seconds to the next tick."""
        picture = picture_of(tick)
        if picture != self._picture or _is_moving(tick):
            self._picture, self._interval_s = picture, self.base_s
        else:
            self._interval_s = min(2.0 * self._interval_s, self.max_s)
        return min(self._interval_s, max(self.base_s, _due_in_s(tick)))


def wishes(report: RuntimeReport) -> object:
    """What cannot wait: demand, and nodes that came or went. Compared, never looked into.

    The order of a report means nothing: a GCS lists its nodes now so, now so.
    """
    nodes = frozenset((node.node_id, node.status in _GONE) for node in report.nodes)
    return nodes, frozenset(report.demands), frozenset(report.gangs), frozenset(report.constraints)


def picture_of(tick: Tick) -> object:
    """Everything that counts as a change; times, versions and spend move by themselves and do not."""
    runtime = tick.runtime
    seen = None if runtime is None else (wishes(runtime), frozenset(map(_free, runtime.nodes)))
    records = tuple((record.instance_id, record.state) for record in tick.ledger.instances.values())
    config = (tick.spec, tick.config_stamp, tick.config_problem)
    return seen, records, config, tick.plan.quarantined


def _free(node: NodeReport) -> object:
    return node.node_id, node.status, node.available


def _is_moving(tick: Tick) -> bool:
    """A machine is on its way, in or out, or something still has to be handed over."""
    records = tick.ledger.instances.values()
    return bool(tick.ledger.outbox) or any(record.state not in _SETTLED for record in records)


def _due_in_s(tick: Tick) -> float:
    """When something becomes due by time alone: an idle node, a type that may be tried again."""
    return min((due for due in _dues(tick) if due > 0), default=math.inf)


def _dues(tick: Tick) -> Iterator[float]:
    limits = {kind.name: kind.idle_timeout_s for kind in tick.spec.node_types}
    for node in tick.runtime.nodes if tick.runtime is not None else ():
        own = limits.get(node.node_type)
        limit = tick.spec.idle_timeout_s if own is None else own
        if node.status is NodeStatus.IDLE and limit is not None and not node.is_head:
            yield limit - node.idle_s + _AFTER_S
    for health in tick.ledger.memory.health.values():
        yield health.blocked_until - tick.plan.at
