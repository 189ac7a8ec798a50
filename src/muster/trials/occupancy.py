"""How full an experiment is: what schedulers read that give trials more or less room. Plain values."""

from __future__ import annotations

from typing import NamedTuple

from muster.base.resources import SCALE, Resources


class Occupancy(NamedTuple):
    """All there is, what processes of trials hold of it, and how many trials there are."""

    capacity: Resources
    used: Resources  # by those about to end, too
    live: int  # not finished
    pending: int
    paused: int


class ResourceReading:
    """Ray's `tune_controller._resource_updater`: what all trials together may use."""

    def __init__(self, capacity: Resources) -> None:
        self._capacity = capacity

    def get_num_cpus(self) -> float:
        return self._amount("CPU")

    def get_num_gpus(self) -> float:
        return self._amount("GPU")

    def _amount(self, name: str) -> float:
        """A whole number as an int, because it is divided by numbers of trials."""
        units = self._capacity.units(name)
        return units / SCALE if units % SCALE else units // SCALE
