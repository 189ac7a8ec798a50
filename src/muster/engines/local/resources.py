"""ResourcePool counts what is free on this machine: exact fixed-point accounting, GPU ids included. Pure.

LocalEngine asks it before each start. Amounts are integers of 1/10000, so that fractions end at exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.base.resources import SCALE, Resources, to_units
from muster.engines.worker.handle import Grant
from muster.trials.placement_group import PlacementGroupFactory

GPU = "GPU"


class ResourcePool:
    """A ResourcePool holds the free amounts of every resource, and of every single GPU."""

    def __init__(self, capacity: Mapping[str, float], gpu_ids: Sequence[str] = ()) -> None:
        self.capacity = Resources.of(capacity)
        self._free = dict(self.capacity)
        count = -(-self._free.get(GPU, 0) // SCALE)
        names = [*gpu_ids, *(str(n) for n in range(count) if str(n) not in gpu_ids)][:count]
        self._gpu_free = dict.fromkeys(names, SCALE)
        self._sizes: dict[PlacementGroupFactory, tuple[dict[str, int], tuple[int, ...]]] = {}

    def free_units(self) -> Mapping[str, int]:
        return dict(self._free)

    def why_never(self, request: PlacementGroupFactory) -> str | None:
        """Returns why this request can never start here; None when it can, once enough is free."""
        if request.strategy == "STRICT_SPREAD" and len(request.bundles) > 1:
            return f"STRICT_SPREAD wants {len(request.bundles)} machines; this engine has one"
        units, gpus = self._size(request)
        short = [name for name, amount in units.items() if amount > self.capacity.units(name)]
        if not short and gpus and _place(gpus, dict.fromkeys(self._gpu_free, SCALE)) is None:
            short = [GPU]  # enough in sum, but fractions do not cut across GPUs
        if not short:
            return None
        wanted = ", ".join(f"{name}: {units[name] / SCALE:g}" for name in short)
        there = ", ".join(f"{name}: {self.capacity.units(name) / SCALE:g}" for name in short)
        return f"requested {wanted}; this machine offers {there}"

    def take(self, request: PlacementGroupFactory, prefer: Sequence[str] = ()) -> Grant | None:
        """Reserves the whole request, or nothing; GPUs in `prefer` come first."""
        units, gpus = self._size(request)
        free = self._free
        for name, amount in units.items():
            if amount > free.get(name, 0):
                return None
        first = {gpu: self._gpu_free[gpu] for gpu in prefer if gpu in self._gpu_free}
        given = _place(gpus, {**first, **self._gpu_free}) if gpus else {}
        if given is None:
            return None
        for name, amount in units.items():
            free[name] -= amount
        for gpu, amount in given.items():
            self._gpu_free[gpu] -= amount
        return Grant(units, given)

    def free(self, grant: Grant) -> None:
        for name, amount in grant.units.items():
            self._free[name] += amount
        for gpu, amount in grant.gpu_units.items():
            self._gpu_free[gpu] += amount

    def _size(self, request: PlacementGroupFactory) -> tuple[dict[str, int], tuple[int, ...]]:
        """Returns total units, and the GPU units of each bundle; cached, as most trials ask for the same."""
        known = self._sizes.get(request)
        if known is None:
            units: dict[str, int] = {}
            for bundle in request.bundles:
                for name, amount in bundle.items():
                    units[name] = units.get(name, 0) + to_units(name, amount)
            gpus = tuple(to_units(GPU, b[GPU]) for b in request.bundles if b.get(GPU))
            known = self._sizes[request] = (units, gpus)
        return known


def _place(amounts: Sequence[int], free: dict[str, int]) -> dict[str, int] | None:
    """Returns units per GPU id: whole ones on empty GPUs, a fraction on the fullest that holds it."""
    left = dict(free)
    given: dict[str, int] = {}
    for amount in sorted(amounts, reverse=True):
        whole, part = divmod(amount, SCALE)
        empty = [gpu for gpu, units in left.items() if units == SCALE][:whole]
        if len(empty) < whole:
            return None
        for gpu in empty:
            left[gpu] = 0
            given[gpu] = SCALE
        if part:
            holding = [gpu for gpu, units in left.items() if units >= part]
            if not holding:
                return None
            gpu = min(holding, key=left.__getitem__)  # the first of equals
            left[gpu] -= part
            given[gpu] = given.get(gpu, 0) + part
    return given
