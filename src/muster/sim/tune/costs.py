"""Counts what simulated trials hold and what they spend besides iterations: Costs and WorkerCapacity.

Used by the simulated engine and by whoever builds one. Knows no trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from muster.base.resources import Resources
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.spend import share_of


class Costs(Struct, frozen=True, kw_only=True):
    """Costs are the seconds that trials spend on something else than iterations."""

    start_s: float = 0.0  # a new process
    first_s: float = 0.0  # more for the first process on a node
    reuse_s: float = 0.0  # a process that served another trial
    restore_s: float = 0.0  # loading a checkpoint, besides the start
    save_s: float = 0.0
    stop_s: float = 0.0
    linger_s: float = 0.0  # a place on a node that no trial takes over is kept for so long
    is_function: bool = False  # saves nothing when asked; reports a checkpoint when its machine is announced
    checkpoint_every: int = 0  # a report carries a checkpoint at so many iterations; 0: only when asked


class WorkerCapacity:
    """A WorkerCapacity counts resources exactly; `busy_s` is the integral of the share in use."""

    def __init__(self, capacity: Mapping[str, float], monotonic: Callable[[], float]) -> None:
        self.whole = Resources.of(capacity)
        self._free = self.whole
        self._monotonic = monotonic
        self._sizes: dict[PlacementGroupFactory, tuple[Resources, float]] = {}
        self._share = 0.0
        self._counted_s = 0.0
        self._counted_at = monotonic()

    @property
    def busy_s(self) -> float:
        """Returns the seconds of the whole capacity that trials have held so far."""
        return self._counted_s + self._share * (self._monotonic() - self._counted_at)

    @property
    def is_empty(self) -> bool:
        return self._free == self.whole

    def needs(self, resources: PlacementGroupFactory) -> Resources:
        return self._size(resources)[0]

    def fits(self, resources: PlacementGroupFactory) -> bool:
        return self._free.holds(self.needs(resources))

    def can_ever_fit(self, resources: PlacementGroupFactory) -> bool:
        return self.whole.holds(self.needs(resources))

    def share(self, resources: PlacementGroupFactory) -> float:
        return self._size(resources)[1]

    def take(self, resources: PlacementGroupFactory) -> None:
        needs, share = self._size(resources)
        self._free = self._free.minus(needs)
        self._use(share)

    def give_back(self, resources: PlacementGroupFactory) -> None:
        needs, share = self._size(resources)
        self._free = self._free.plus(needs)
        self._use(-share)

    def _use(self, share: float) -> None:
        self._counted_s, self._counted_at = self.busy_s, self._monotonic()
        self._share += share

    def _size(self, resources: PlacementGroupFactory) -> tuple[Resources, float]:
        """Returns the needed resources, and their largest share of the capacity."""
        if resources not in self._sizes:
            needs = Resources.of(resources.required_resources)
            self._sizes[resources] = (needs, share_of(needs, self.whole))
        return self._sizes[resources]
