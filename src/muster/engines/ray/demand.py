"""How much of the cluster trials may ask for, and which waiting trials are shown to it. Pure.

RayEngine asks before each placement group: what fits what the cluster is, or may become, is shown at once, so
that an autoscaler sees all of it; who gets the place of a trial that ends before a new machine would be there
is not, because nobody should pay for a machine that comes too late.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from muster.base.resources import SCALE, Resources, to_units
from muster.trials.bundles import PlacementGroupFactory

BOOT_S = 60.0  # until a new machine is there, when nobody has measured


def units_of(request: PlacementGroupFactory) -> dict[str, int]:
    """What it takes in all, exactly."""
    units: dict[str, int] = {}
    for bundle in request.bundles:
        for name, amount in bundle.items():
            units[name] = units.get(name, 0) + to_units(name, amount)
    return units


class Room:
    """What is there, may be there, and is taken."""

    def __init__(self, present: Mapping[str, float], limit: Mapping[str, float] | None = None) -> None:
        self.present = Resources.of(present)
        self.limit = Resources.of(limit) if limit is not None else self.present
        self._used: dict[str, int] = {}
        self._sizes: dict[PlacementGroupFactory, dict[str, int]] = {}

    def update(self, present: Mapping[str, float], limit: Mapping[str, float] | None) -> bool:
        """What the cluster is and may become now; True when that is something else than before."""
        before = (self.present, self.limit)
        self.present = Resources.of(present)
        self.limit = Resources.of(limit) if limit is not None else self.present
        return (self.present, self.limit) != before

    def take(self, request: PlacementGroupFactory) -> None:
        for name, amount in self._size(request).items():
            self._used[name] = self._used.get(name, 0) + amount

    def free(self, request: PlacementGroupFactory) -> None:
        for name, amount in self._size(request).items():
            self._used[name] -= amount

    def fits(self, request: PlacementGroupFactory, *, without: Sequence[PlacementGroupFactory] = ()) -> bool:
        """Whether there could be room for it, were those `without` gone."""
        return self._fits(request, self.limit, without)

    def is_there(self, request: PlacementGroupFactory) -> bool:
        """Whether it needs no new machine, as far as sums can tell."""
        return self._fits(request, self.present, ())

    def _fits(
        self, request: PlacementGroupFactory, total: Resources, without: Sequence[PlacementGroupFactory]
    ) -> bool:
        spare = [self._size(each) for each in without]
        return all(
            amount + self._used.get(name, 0) - sum(each.get(name, 0) for each in spare) <= total.units(name)
            for name, amount in self._size(request).items()
        )

    def why_never(self, request: PlacementGroupFactory) -> str | None:
        """Why there can never be room for it; None when there can."""
        units = self._size(request)
        short = [name for name, amount in units.items() if amount > self.limit.units(name)]
        if not short:
            return None
        wanted = ", ".join(f"{name}: {units[name] / SCALE:g}" for name in short)
        there = ", ".join(f"{name}: {self.limit.units(name) / SCALE:g}" for name in short)
        return f"requested {wanted}; the whole cluster offers {there}"

    def _size(self, request: PlacementGroupFactory) -> dict[str, int]:
        known = self._sizes.get(request)
        if known is None:
            known = self._sizes[request] = units_of(request)
        return known


def expected_starts(remaining_s: Sequence[float], duration_s: float, count: int) -> list[float]:
    """When each of `count` waiting trials would get the place of one that runs now, if no machine came.

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
    """The middle one; None when none is known."""
    return sorted(durations_s)[len(durations_s) // 2] if durations_s else None
