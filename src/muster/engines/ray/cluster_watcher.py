"""ClusterWatcher asks the cluster, in a thread, what it has, may become, and can never place.

RayEngine's own thread must not wait for the GCS; what the watcher saw comes to it through the WakeupQueue.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from muster.base.forecast import Forecast, last_of
from muster.base.resources import Resources
from muster.errors import EngineError
from muster.runtimes.ray.kv_board import ForecastWriter
from muster.session.session import EMPTIED, PreemptionInfo
from muster.trials.spend import share_of_bundles

_log = logging.getLogger(__name__)

PERIOD_S = 2.0
_FRESH_S = 60.0  # verdicts that are older than this have no monitor any more
_UNPLACEABLE = ("infeasible", "invalid")
_OWN_MARKS = ("node:", "accelerator_type:", "object_store_memory")
_PROBE_TIMEOUT_S = 30.0
# For what must not go with a node: an actor or task without resources does not keep a node from idling.
ON_THE_HEAD = {"node:__internal_head__": 0.001}
_LEGACY_STATUS = "__autoscaling_status"  # the key that Ray's older autoscaler writes


class ClusterView(NamedTuple):
    """What was seen of the cluster."""

    nodes: Sequence[Mapping[str, float]]  # what each node that lives has in all
    limit: Mapping[str, float] | None = None  # what the cluster may become; None: unknown
    has_autoscaler: bool = False
    unplaceable: Mapping[str, str] = {}  # why, by hex id of a placement group that can never be placed
    draining: Mapping[str, PreemptionInfo] = {}  # by hex id, nodes that live, and are to go
    alive: frozenset[str] = frozenset()  # hex ids of all nodes that live
    groups: Mapping[str, Sequence[str]] = {}  # the draining nodes that a placement group is on, by its hex id
    totals: Mapping[str, Mapping[str, float]] = {}  # what each node that lives has in all, by its hex id
    prices: Mapping[str, float] = {}  # $ per hour of nodes, by hex id; those that are not known are missing
    price_problem: str = ""  # why prices were ignored
    has_prices: bool = False  # a monitor publishes them, also of nodes to come

    def rate_of(
        self, node_id: str, bundles: Sequence[Mapping[str, float]], default: float | None
    ) -> float | None:
        """Return the $ per hour of these bundles on a node; None when its price is not known."""
        price, total = self.prices.get(node_id, default), self.totals.get(node_id)
        if price is None or total is None:
            return None
        return price * share_of_bundles(bundles, Resources.of(total))


def totals_of(ray: Any) -> dict[str, dict[str, float]]:  # noqa: ANN401 - a module
    """Return what each living node has by its hex id, without Ray's own markers."""
    return {
        str(node.get("NodeID", number)): {
            name: amount for name, amount in node["Resources"].items() if not name.startswith(_OWN_MARKS)
        }
        for number, node in enumerate(ray.nodes())
        if node["Alive"]
    }


def read_cluster(ray: Any, client: Any, now: float) -> ClusterView:  # noqa: ANN401 - a module, a GcsClient
    """Return what the cluster reports now."""
    totals = totals_of(ray)
    from muster.runtimes.ray.kv_board import read_prices, read_verdicts
    from muster.runtimes.ray.publish import max_resources

    limit, board, prices = max_resources(client), read_verdicts(client), read_prices(client, now)
    is_ours = now - board.at < _FRESH_S
    unplaceable = {
        group: f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        for group, verdict in board.gangs.items()
        if is_ours and verdict.reason in _UNPLACEABLE
    }
    has_autoscaler = limit is not None or is_ours or _grows(client.kv_get(_LEGACY_STATUS))
    draining = read_draining(client, prices.emptied)
    return ClusterView(
        list(totals.values()),
        limit,
        has_autoscaler,
        unplaceable,
        draining=draining,
        alive=frozenset(totals),
        groups=groups_on(ray, draining) if draining else {},
        totals=totals,
        prices=prices.nodes,
        price_problem=prices.problem,
        has_prices=prices.is_published,
    )


def read_draining(client: Any, emptied: Sequence[str] = ()) -> dict[str, PreemptionInfo]:  # noqa: ANN401
    """Return the nodes that are to go, whoever drains them, with the reason where somebody gave one."""
    deadlines = client.drain_deadlines()
    if not deadlines:
        return {}
    from muster.runtimes.ray.kv_board import notices_of

    notices, found = notices_of(client, deadlines), {}
    for node_id, deadline in deadlines.items():
        notice = notices.get(node_id)
        is_noticed = notice is not None and not notice.is_cancelled
        if not is_noticed and node_id in emptied:
            found[node_id] = PreemptionInfo(deadline, EMPTIED, "muster empties it to save money", node_id)
        elif notice is None or notice.is_cancelled:
            found[node_id] = PreemptionInfo(deadline, "drain", "Ray drains the node", node_id)
        else:
            found[node_id] = PreemptionInfo(deadline, notice.kind.value, notice.source, node_id)
    return found


def groups_on(ray: Any, nodes: Iterable[str]) -> dict[str, list[str]]:  # noqa: ANN401 - a module
    """Return which of these nodes each placement group uses."""
    wanted, found = set(nodes), {}
    for group_id, row in ray.util.placement_group_table().items():
        used = sorted(wanted.intersection(row["bundles_to_node_id"].values()))
        if used:
            found[group_id] = used
    return found


def _grows(status: bytes | None) -> bool:
    """Return whether a report of Ray's own autoscaler is one of a cluster that can get more nodes.

    Every head that Ray starts has such a reporter. Without a cluster file it only watches, and then it calls
    the type of each node after the node: `node_<its id>`.
    """
    try:
        types = json.loads(status)["autoscaler_report"]["node_type_mapping"] if status else {}
        return any(name != f"node_{node}" for node, name in types.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # a report of another kind: no reason to take the cluster for one that never grows


class ClusterProbe:
    """Reads the cluster from its head, for a driver that cannot reach the GCS (Ray Client)."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - a module
        self._ray = ray
        self._task: Any = ray.remote(num_cpus=0, max_retries=0, resources=ON_THE_HEAD)(_read_on_head)

    def read(self, now: float) -> ClusterView:
        """Return the view of the head; where the head lacks this package, the cluster counts as growing."""
        if self._task is not None:
            try:
                return ClusterView(*self._ray.get(self._task.remote(now), timeout=_PROBE_TIMEOUT_S))
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds; the next reading may work
                _log.debug("the cluster could not be read from its head: %s", error)
                if "No module named" in str(error):
                    self._task = None
        return ClusterView(list(totals_of(self._ray).values()), has_autoscaler=True)


def _read_on_head(now: float) -> tuple[Any, ...]:
    """Read the cluster in a task on the head."""
    import ray

    from muster.runtimes.ray.client import GcsClient

    return tuple(read_cluster(ray, GcsClient(ray.get_runtime_context().gcs_address), now))


class ClusterWatcher:
    """Reads the cluster every two seconds, and calls `on_view` in its thread.

    It also writes the newest forecast, which the cluster's autoscaler reads, with `writer`.
    """

    def __init__(
        self,
        read: Callable[[], ClusterView],
        on_view: Callable[[ClusterView], object],
        every_s: float = PERIOD_S,
        *,
        writer: ForecastWriter | None = None,
    ) -> None:
        self._read, self._on_view, self._every_s = read, on_view, every_s
        self._writer = writer
        self._forecast: Forecast | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-cluster-watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self._write()
                self._on_view(self._read())
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds while a head restarts
                _log.debug("the cluster could not be read: %s", error)

    def publish(self, forecast: Forecast) -> None:
        """Have the thread write a forecast.

        The first one is written at once: without it a monitor launches nodes for all trials that it sees.
        """
        is_first, self._forecast = self._forecast is None, forecast
        if is_first:
            with suppress(EngineError):  # the thread tries again
                self._write()

    def _write(self) -> None:
        if self._writer is not None and self._forecast is not None:
            self._writer.write_forecast(self._forecast)

    def close(self, at: float) -> None:
        """End the thread; writes that nothing more will come, so that idle nodes need not wait."""
        self._ends.set()
        self._thread.join(timeout=10.0)
        if self._forecast is not None:
            self._forecast = last_of(self._forecast, at)
            with suppress(EngineError):  # the head is gone, and the entry with it
                self._write()


class DrainingNodes:
    """Keeps what is announced about nodes, and says what is new."""

    def __init__(self) -> None:
        self._seen: dict[str, PreemptionInfo] = {}
        self._valid: dict[str, PreemptionInfo] = {}  # without deadlines that had passed when they came

    def update(self, view: ClusterView, now: float) -> list[str]:
        """Take a view of the cluster; return a line per news. A node that died stays announced."""
        lines = []
        for node_id, info in view.draining.items():
            if self._seen.get(node_id) == info:
                continue
            self._seen[node_id], left_s = info, info.left_s(now)
            self._valid[node_id] = info if left_s > 0 else info._replace(deadline=None)
            lines.append(f"node {node_id[:8]} will be taken {_when(left_s)} ({info.kind}: {info.source})")
        for node_id in [each for each in self._seen if each in view.alive and each not in view.draining]:
            del self._seen[node_id], self._valid[node_id]
            lines.append(f"node {node_id[:8]} stays: what was announced is taken back")
        return lines

    def earliest(self, node_ids: Iterable[str]) -> PreemptionInfo | None:
        """Return what is announced about the first of these nodes to go; None: they all stay."""
        found = [self._valid[node_id] for node_id in node_ids if node_id in self._valid]
        return min(found, key=lambda info: (info.left_s(0.0), info.node_id), default=None)


def _when(left_s: float) -> str:
    if left_s == math.inf:
        return "at a time that nobody named"
    if left_s > 0:
        return f"in {left_s:.0f} s"
    return f"and should have been {-left_s:.0f} s ago: clocks may differ, so its trials are saved at once"
