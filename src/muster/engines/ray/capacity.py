"""Compute what a cluster can hold, and whether another machine is worth its start: pure."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from muster.base.resources import SCALE, Resources
from muster.engines.process_engine import units_of
from muster.trials.placement_group import PlacementGroupFactory

_FAR_AHEAD = 1000  # more waiting trials than these do not change the answer
RETURN_S = 300.0  # so long a node that went away is thought to come back
BOOT_S = 60.0  # until a new machine is up, before any has been measured


class ClusterCapacity:
    """Counts what the cluster has, may have, and has in use."""

    def __init__(
        self,
        present: Mapping[str, float],
        limit: Mapping[str, float] | None = None,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        """`fixed` overrides what is seen of the cluster."""
        self.present = Resources.of(present)
        self.limit = Resources.of(limit) if limit is not None else self.present
        self.is_bounded = True  # False: it may grow, and the limit is unknown
        self._used: dict[str, int] = {}
        self._fixed, self.history = dict(fixed or {}), CapacityHistory()

    def see(
        self,
        nodes: Sequence[Mapping[str, float]],
        limit: Mapping[str, float] | None,
        now: float,
        *,
        grows: bool,
    ) -> bool:
        """Take the nodes that are there, and what they may become if the cluster `grows`.

        Returns whether that has changed anything.
        """
        self.history.note(nodes, now)
        expected = limit if grows else self.history.most()
        most = None if expected is None else {**expected, **self._fixed}
        present = {**total_of(nodes), **self._fixed}
        return self.update(present, most, is_bounded=most is not None or bool(self._fixed))

    def update(
        self, present: Mapping[str, float], limit: Mapping[str, float] | None, *, is_bounded: bool = True
    ) -> bool:
        """Take what the cluster is and may become now; returns whether that has changed."""
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
        """Return whether there could be room for the request, if those in `without` ended."""
        return not self.is_bounded or self._fits(request, self.limit, without)

    def is_there(self, request: PlacementGroupFactory) -> bool:
        """Return whether the request needs no new machine, judged by sums alone."""
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
        """Return why there can never be room for the request; None when there can."""
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
    """Keeps the nodes of a cluster, with those that went away a short time ago.

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
        """Return the largest amount of each resource at any time."""
        most: dict[str, float] = {}
        for nodes_then in self._seen:
            for name, amount in total_of(map(dict, nodes_then)).items():
                most[name] = max(amount, most.get(name, 0.0))
        return most

    def nodes(self) -> list[dict[str, float]]:
        """Return all nodes that were there, at least one of each kind."""
        return [dict(node) for nodes_then in self._seen for node in nodes_then]


class Growth:
    """Decides whether another machine is worth its start, by how long both took so far."""

    def __init__(self, boot_s: float = BOOT_S) -> None:
        self._boot_s = boot_s
        self._has_booted = False
        self._durations_s: deque[float] = deque(maxlen=50)

    def ended(self, duration_s: float) -> None:
        """Record how long a trial has run."""
        self._durations_s.append(duration_s)

    def booted(self, after_s: float) -> None:
        """Record how long a trial waited for a new machine."""
        self._boot_s, self._has_booted = after_s, True

    def wants_more(
        self, began: Sequence[float], waiting: int, shown: int, now: float, left_s: float = math.inf
    ) -> bool:
        """Return whether more trials would wait for a new machine than have asked for one.

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
    """Return when each of `count` waiting trials would get the place of a running one.

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
    """Return the median; None when none is known."""
    return sorted(durations_s)[len(durations_s) // 2] if durations_s else None


def late_ones(remaining_s: Sequence[float], duration_s: float | None, count: int, boot_s: float) -> int:
    """Return how many of `count` waiting trials would still wait when a new machine could be up."""
    if duration_s is None or not remaining_s:
        return count
    return count - sum(start < boot_s for start in expected_starts(remaining_s, duration_s, count))


def why_unplaceable(request: PlacementGroupFactory, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Return why these nodes could never hold the request; None when they could, or labels decide."""
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
    """Return whether every bundle can have its own node, by augmenting paths."""
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


def total_of(nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.items():
            total[name] = total.get(name, 0.0) + amount
    return total
