"""Keep the facts of an experiment without a file, for the simulator and for crash tests.

The store keeps bytes, not objects, so that `load` returns exactly what the SQLite store would return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.stores.experiment import values
from muster.stores.experiment.codec import ExperimentLocation, PackedBatch, pack_batch, unpack, unpack_batch
from muster.trials.events import Fact
from muster.trials.ports import SavedExperiment


class MemoryTrialStore:
    """Lives as long as the object; `copy` is what a crash right now would leave."""

    def __init__(self, *, root: str = "/experiment", trust_pickles: bool = True) -> None:
        self._place = ExperimentLocation(root)
        self._trust = trust_pickles
        self._settings = values.encode({})
        self._snapshot: bytes | None = None
        self._plugins: Mapping[str, bytes] = {}
        self._ended: tuple[bytes, ...] = ()
        self._batches: list[PackedBatch] = []
        self.appended = self.commits = 0

    def append(self, facts: Sequence[Fact]) -> None:
        self._batches.append(pack_batch(facts, self._place)._replace(stored=[]))
        self.appended += len(facts)
        self.commits += 1

    def snapshot(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: Sequence[bytes] = (),
    ) -> None:
        self._snapshot, self._plugins, self._batches = bytes(trials), dict(plugins), []
        self._ended += tuple(map(bytes, ended))

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        self._settings = values.encode(dict(settings))

    def load(self) -> SavedExperiment:
        return SavedExperiment(
            settings=values.decode(*self._settings, trust=self._trust),
            snapshot=self._snapshot,
            plugins=dict(self._plugins),
            ended=self._ended,
            facts=tuple(
                unpack(fact, self._place, trust=self._trust)
                for data, pickles, _ in self._batches
                for fact in unpack_batch(data, pickles)
            ),
        )

    def copy(self) -> MemoryTrialStore:
        """Return an independent store in the same state."""
        other = MemoryTrialStore.__new__(MemoryTrialStore)
        other.__dict__.update(self.__dict__)
        other._batches = list(self._batches)
        return other

    def sync(self) -> None:
        """Do nothing: memory has no disk."""

    def close(self) -> None:
        """Do nothing; `load` still works, as after a restart."""
