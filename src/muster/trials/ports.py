"""What the trial controller asks of the outside world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from muster.trials.commands import EngineCommand
from muster.trials.events import EngineEvent, Fact


class Engine(Protocol):
    """Runs trials. `submit` never blocks and never raises because of a trial; outcomes come from `poll`.

    The protocol is lock-step: after TrialReported a trial waits for ContinueTrial, SaveTrial or StopTrial.
    Each StartTrial is answered by at most one TrialStarted and by exactly one TrialExited. Commands for
    unknown trials are ignored.
    """

    def capacity(self) -> Mapping[str, float]:
        """What all trials together may use: CPU, GPU, memory, custom."""
        ...

    def submit(self, command: EngineCommand) -> None: ...

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        """Every event that is ready, in the order of arrival; waits up to `timeout_s` for the first."""
        ...

    def close(self) -> None:
        """End every process. Safe to call twice."""
        ...


class SavedExperiment(Struct, frozen=True, kw_only=True):
    """What a store gives back: the plug-ins' last saved state, and the facts after it."""

    settings: Mapping[str, Any]  # what the experiment was started with, as plain data
    snapshot: bytes | None  # encoded by the core: trials, counters; None before the first one
    plugins: Mapping[str, bytes]  # plug-in name -> its saved state, taken with the snapshot
    ended: Sequence[bytes] = ()  # encoded by the core: trials that are over, as given with each snapshot
    facts: Sequence[Fact]  # those handled after the snapshot, in order


class TrialStore(Protocol):
    """One experiment's facts. One writer; readers may look while it runs."""

    def append(self, facts: Sequence[Fact]) -> None:
        """Durable against kill -9 when it returns; all or none."""
        ...

    def snapshot(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: bytes = b"",
    ) -> None:
        """Replace the saved state: it stands for every fact appended so far. `ended` joins earlier ones.

        `statuses`: Ray's status of trials that have not ended, where the facts alone cannot tell readers.
        """
        ...

    def load(self) -> SavedExperiment: ...

    def close(self) -> None: ...
