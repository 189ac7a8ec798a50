"""Decide when something goes wrong in a simulated run.

Each kind of fault draws from its own stream, so a new kind never changes an old run's other faults.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.base.rng import Seed, Stream


class Faults:
    """Faults belong to one run: `hit(kind)` draws whether one happens now; after `stop()` none does."""

    def __init__(self, seed: Seed, rates: Mapping[str, float]) -> None:
        self.rates = dict(rates)
        self.injected: dict[str, int] = {}
        self.stopped = False
        self._seed = seed
        self._streams: dict[str, Stream] = {}

    @classmethod
    def none(cls) -> Faults:
        return cls(Seed(0), {})

    def hit(self, kind: str) -> bool:
        rate = self.rates.get(kind, 0.0)
        if self.stopped or not rate or self.stream(kind).random() >= rate:
            return False
        self.injected[kind] = self.injected.get(kind, 0) + 1
        return True

    def stream(self, kind: str) -> Stream:
        """Return the kind's own randomness, also for the details of a fault."""
        if kind not in self._streams:
            self._streams[kind] = self._seed.derive(f"sim.fault.{kind}")
        return self._streams[kind]

    def between(self, kind: str, low: float, high: float) -> float:
        return round(self.stream(kind).uniform(low, high), 1)

    def stop(self) -> None:
        self.stopped = True
