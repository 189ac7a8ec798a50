"""ClusterWatcher asks the cluster, in a thread, what it has, may become, and can never place.

RayEngine's own thread must not wait for the GCS; what the watcher saw comes to it through the WakeupQueue.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from muster.base.resources import SCALE, Resources
from muster.engines.process_engine import units_of
from muster.session.preemption import EMPTIED, PreemptionInfo
from muster.trials.placement_group import PlacementGroupFactory

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
    """A ClusterView is what was seen of the cluster."""

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

    @property
    def present(self) -> dict[str, float]:
        return _total(self.nodes)


def _total(nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def nodes_of(ray: Any) -> list[dict[str, float]]:  # noqa: ANN401 - a module
    """Returns what each living node has, without Ray's own markers."""
    return list(totals_of(ray).values())


def totals_of(ray: Any) -> dict[str, dict[str, float]]:  # noqa: ANN401 - a module
    """Returns what each living node has by its hex id, without Ray's own markers."""
    return {
        str(node.get("NodeID", number)): {
            name: amount for name, amount in node["Resources"].items() if not name.startswith(_OWN_MARKS)
        }
        for number, node in enumerate(ray.nodes())
        if node["Alive"]
    }


def read_cluster(ray: Any, client: Any, now: float) -> ClusterView:  # noqa: ANN401 - a module, a GcsClient
    """Returns what the cluster reports now."""
    totals = totals_of(ray)
    from muster.runtimes.ray.price_board import read_prices
    from muster.runtimes.ray.publish import max_resources
    from muster.runtimes.ray.verdict_board import read_board

    limit, board, prices = max_resources(client), read_board(client), read_prices(client, now)
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
    """Returns the nodes that are to go, whoever drains them, with the reason where somebody gave one."""
    deadlines = client.drain_deadlines()
    if not deadlines:
        return {}
    from muster.runtimes.ray.notice_board import notices_of

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
    """Returns which of these nodes each placement group uses."""
    wanted, found = set(nodes), {}
    for group_id, row in ray.util.placement_group_table().items():
        used = sorted(wanted.intersection(row["bundles_to_node_id"].values()))
        if used:
            found[group_id] = used
    return found


def _grows(status: bytes | None) -> bool:
    """Returns whether a report of Ray's own autoscaler is one of a cluster that can get more nodes.

    Every head that Ray starts has such a reporter. Without a cluster file it only watches, and then it calls
    the type of each node after the node: `node_<its id>`.
    """
    try:
        types = json.loads(status)["autoscaler_report"]["node_type_mapping"] if status else {}
        return any(name != f"node_{node}" for node, name in types.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # a report of another kind: no reason to take the cluster for one that never grows


class ClusterProbe:
    """A ClusterProbe reads the cluster from its head, for a driver that cannot reach the GCS (Ray Client)."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - a module
        self._ray = ray
        self._task: Any = ray.remote(num_cpus=0, max_retries=0, resources=ON_THE_HEAD)(_read_on_head)

    def read(self, now: float) -> ClusterView:
        """Returns the view of the head; where the head lacks this package, the cluster counts as growing."""
        if self._task is not None:
            try:
                return ClusterView(*self._ray.get(self._task.remote(now), timeout=_PROBE_TIMEOUT_S))
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds; the next reading may work
                _log.debug("the cluster could not be read from its head: %s", error)
                if "No module named" in str(error):
                    self._task = None
        return ClusterView(nodes_of(self._ray), has_autoscaler=True)


def _read_on_head(now: float) -> tuple[Any, ...]:
    """Reads the cluster in a task on the head."""
    import ray

    from muster.runtimes.ray.client import GcsClient

    return tuple(read_cluster(ray, GcsClient(ray.get_runtime_context().gcs_address), now))


class ClusterWatcher:
    """A ClusterWatcher reads the cluster every two seconds, and calls `on_view` in its thread."""

    def __init__(
        self,
        read: Callable[[], ClusterView],
        on_view: Callable[[ClusterView], object],
        every_s: float = PERIOD_S,
    ) -> None:
        self._read, self._on_view, self._every_s = read, on_view, every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-cluster-watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self._on_view(self._read())
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds while a head restarts
                _log.debug("the cluster could not be read: %s", error)

    def close(self) -> None:
        self._ends.set()
        self._thread.join(timeout=10.0)


class DrainingNodes:
    """A DrainingNodes keeps what is announced about nodes, and says what is new."""

    def __init__(self) -> None:
        self._seen: dict[str, PreemptionInfo] = {}
        self._valid: dict[str, PreemptionInfo] = {}  # without deadlines that had passed when they came

    def update(self, view: ClusterView, now: float) -> list[str]:
        """Takes a view of the cluster; returns a line per news. A node that died stays announced."""
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
        """Returns what is announced about the first of these nodes to go; None: they all stay."""
        found = [self._valid[node_id] for node_id in node_ids if node_id in self._valid]
        return min(found, key=lambda info: (info.left_s(0.0), info.node_id), default=None)


def _when(left_s: float) -> str:
    if left_s == math.inf:
        return "at a time that nobody named"
    if left_s > 0:
        return f"in {left_s:.0f} s"
    return f"and should have been {-left_s:.0f} s ago: clocks may differ, so its trials are saved at once"


_FAR_AHEAD = 1000  # more waiting trials than these do not change the answer
RETURN_S = 300.0  # so long a node that went away is thought to come back
BOOT_S = 60.0  # until a new machine is up, before any has been measured


class ClusterCapacity:
    """A ClusterCapacity counts what the cluster has, may have, and has in use."""

    def __init__(self, present: Mapping[str, float], limit: Mapping[str, float] | None = None) -> None:
        self.present = Resources.of(present)
        self.limit = Resources.of(limit) if limit is not None else self.present
        self.is_bounded = True  # False: it may grow, and the limit is unknown
        self._used: dict[str, int] = {}

    def update(
        self, present: Mapping[str, float], limit: Mapping[str, float] | None, *, is_bounded: bool = True
    ) -> bool:
        """Takes what the cluster is and may become now; returns whether that has changed."""
        before = (self.present, self.limit, self.is_bounded)
        self.present, self.is_bounded = Resources.of(present), is_bounded
        names = {*present, *(limit or {})}
        most = {name: max(present.get(name, 0.0), (limit or {}).get(name, 0.0)) for name in names}
        self.limit = Resources.of(most)
        return (self.present, self.limit, self.is_bounded) != before

    def take(self, request: PlacementGroupFactory) -> None:
        for name, amount in units_of(request).items():
            self._used[name] = self._used.get(name, 0) + amount

    def free(self, request: PlacementGroupFactory) -> None:
        for name, amount in units_of(request).items():
            self._used[name] -= amount

    def fits(self, request: PlacementGroupFactory, *, without: Sequence[PlacementGroupFactory] = ()) -> bool:
        """Returns whether there could be room for the request, if those in `without` ended."""
        return not self.is_bounded or self._fits(request, self.limit, without)

    def is_there(self, request: PlacementGroupFactory) -> bool:
        """Returns whether the request needs no new machine, judged by sums alone."""
        return self._fits(request, self.present, ())

    def _fits(
        self, request: PlacementGroupFactory, total: Resources, without: Sequence[PlacementGroupFactory]
    ) -> bool:
        spare = [units_of(each) for each in without]
        return all(
            amount + self._used.get(name, 0) - sum(each.get(name, 0) for each in spare) <= total.units(name)
            for name, amount in units_of(request).items()
        )

    def why_never(self, request: PlacementGroupFactory) -> str | None:
        """Returns why there can never be room for the request; None when there can."""
        if not self.is_bounded:
            return None
        units = units_of(request)
        short = [name for name, amount in units.items() if amount > self.limit.units(name)]
        if not short:
            return None
        wanted = ", ".join(f"{name}: {units[name] / SCALE:g}" for name in short)
        there = ", ".join(f"{name}: {self.limit.units(name) / SCALE:g}" for name in short)
        return f"requested {wanted}; the whole cluster offers {there}"


class CapacityHistory:
    """A CapacityHistory keeps the nodes of a cluster, with those that went away a short time ago.

    For clusters without an autoscaler: a node that restarts comes back, and nothing replaces it.
    """

    def __init__(self, keep_s: float = RETURN_S) -> None:
        self._keep_s = keep_s
        self._seen: dict[tuple[tuple[tuple[str, float], ...], ...], float] = {}  # nodes, and when last

    def note(self, nodes: Sequence[Mapping[str, float]], now: float) -> None:
        nodes_then = tuple(sorted(tuple(sorted(node.items())) for node in nodes))
        self._seen = {each: at for each, at in self._seen.items() if now < at + self._keep_s}
        self._seen[nodes_then] = now

    def most(self) -> dict[str, float]:
        """Returns the largest amount of each resource at any time."""
        most: dict[str, float] = {}
        for nodes_then in self._seen:
            for name, amount in _total(map(dict, nodes_then)).items():
                most[name] = max(amount, most.get(name, 0.0))
        return most

    def nodes(self) -> list[dict[str, float]]:
        """Returns all nodes that were there, at least one of each kind."""
        return [dict(node) for nodes_then in self._seen for node in nodes_then]


class Growth:
    """A Growth decides whether another machine is worth its start, by how long both took so far."""

    def __init__(self, boot_s: float = BOOT_S) -> None:
        self._boot_s = boot_s
        self._has_booted = False
        self._durations_s: deque[float] = deque(maxlen=50)

    def ended(self, duration_s: float) -> None:
        """Records how long a trial has run."""
        self._durations_s.append(duration_s)

    def booted(self, after_s: float) -> None:
        """Records how long a trial waited for a new machine."""
        self._boot_s, self._has_booted = after_s, True

    def wants_more(
        self, began: Sequence[float], waiting: int, shown: int, now: float, left_s: float = math.inf
    ) -> bool:
        """Returns whether more trials would wait for a new machine than have asked for one.

        `began`: when trials began whose place would do; `shown` of the `waiting` have asked already.
        `left_s`: until the experiment ends whatever runs then. A machine that comes after that is not asked
        for, once anything is known; a guess alone must not keep the first trial from its machine.
        """
        usual = typical(self._durations_s)
        if left_s <= self._boot_s and (self._has_booted or usual is not None):
            return False
        remaining = [] if usual is None else [at + usual - now for at in began]
        return late_ones(remaining, usual, min(waiting, _FAR_AHEAD), self._boot_s) > shown


def expected_starts(remaining_s: Sequence[float], duration_s: float, count: int) -> list[float]:
    """Returns when each of `count` waiting trials would get the place of a running one.

    Example:
        >>> expected_starts([5.0, 20.0], 10.0, 3)
        [5.0, 15.0, 20.0]
    """
    places = [max(0.0, left) for left in remaining_s]
    heapq.heapify(places)
    starts: list[float] = []
    for _ in range(count if places else 0):
        at = heapq.heappop(places)
        starts.append(at)
        heapq.heappush(places, at + duration_s)
    return starts


def typical(durations_s: Sequence[float]) -> float | None:
    """Returns the median; None when none is known."""
    return sorted(durations_s)[len(durations_s) // 2] if durations_s else None


def late_ones(remaining_s: Sequence[float], duration_s: float | None, count: int, boot_s: float) -> int:
    """Returns how many of `count` waiting trials would still wait when a new machine could be up."""
    if duration_s is None or not remaining_s:
        return count
    return count - sum(start < boot_s for start in expected_starts(remaining_s, duration_s, count))


def why_unplaceable(request: PlacementGroupFactory, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Returns why these nodes could never hold the request; None when they could, or labels decide."""
    if any("label" in name for name in request.options[1]):
        return None
    totals = [Resources.of(node) for node in nodes]
    bundles = [Resources.of(bundle) for bundle in request.bundles]
    if request.strategy == "STRICT_PACK":
        together = Resources(units_of(request))
        if not any(total.holds(together) for total in totals):
            return f"no node has {together} (STRICT_PACK: all on one node)"
        return None
    for bundle in bundles:
        if not any(total.holds(bundle) for total in totals):
            return f"no node has {bundle}"
    if request.strategy == "STRICT_SPREAD" and not _has_one_each(bundles, totals):
        return f"STRICT_SPREAD wants {len(bundles)} nodes, one per bundle; not so many can hold one"
    return None


def _has_one_each(bundles: Sequence[Resources], totals: Sequence[Resources]) -> bool:
    """Returns whether every bundle can have a node of its own, by augmenting paths."""
    holder: dict[int, int] = {}  # node -> bundle

    def place(bundle: int, tried: set[int]) -> bool:
        for node, total in enumerate(totals):
            if node not in tried and total.holds(bundles[bundle]):
                tried.add(node)
                if node not in holder or place(holder[node], tried):
                    holder[node] = bundle
                    return True
        return False

    return all(place(bundle, set()) for bundle in range(len(bundles)))
