"""Define what the trial controller needs from outside: an engine, a store and a saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from muster.trials.events import EngineCommand, EngineEvent, Fact, StartTrial
from muster.trials.model import CheckpointRef

if TYPE_CHECKING:
    from muster.base.forecast import Forecast


class EngineTraits(Struct, frozen=True, kw_only=True):
    """EngineTraits describe how an engine differs from one that runs processes of this machine."""

    has_prices: bool = False  # somebody publishes what its machines cost
    fetches_checkpoints: bool = False  # its trials read those that only the remote storage has
    is_shared: bool = False  # a cluster that assigns its resources itself, and reads forecasts


class Engine(Protocol):
    """Runs trials. An engine inherits from this class, and overrides what differs.

    `submit` never blocks and never raises because of a trial; outcomes come from `poll`.
    The protocol is lock-step: after TrialReported a trial waits for ContinueTrial, SaveTrial or StopTrial.
    Each StartTrial is answered by at most one TrialStarted and by exactly one TrialExited. Commands for
    unknown trials are ignored.
    """

    def capacity(self) -> Mapping[str, float]:
        """Return what all trials together may use: CPU, GPU, memory, custom."""
        ...

    def submit(self, command: EngineCommand) -> None: ...

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        """Return the events that are ready, in the order of arrival; wait up to `timeout_s` for one."""
        ...

    def close(self) -> None:
        """End every process. Safe to call twice."""
        ...

    def traits(self) -> EngineTraits:
        return EngineTraits()

    def ends_in(self, left_s: Callable[[], float]) -> None:
        """Take a function that returns for how many seconds trials may still run."""
        return

    def publish(self, forecast: Forecast) -> None:
        """Take what the experiment expects of a cluster whose autoscaler reads it."""
        return


class SavedExperiment(Struct, frozen=True, kw_only=True):
    """The last snapshot, the state of the plug-ins then, and the later facts."""

    settings: Mapping[str, Any]  # what the experiment was started with, as plain data
    snapshot: bytes | None  # encoded by the core: trials, counters; None before the first one
    plugins: Mapping[str, bytes]  # plug-in name -> its saved state, taken with the snapshot
    ended: Sequence[bytes] = ()  # encoded by the core: trials that are over, as given with each snapshot
    facts: Sequence[Fact]  # those handled after the snapshot, in order


class TrialStore(Protocol):
    """Keeps the facts of one experiment. One writer; readers may read while it runs."""

    def append(self, facts: Sequence[Fact]) -> None:
        """Store the facts, all or none; they survive kill -9 once this returns."""
        ...

    def snapshot(
        self,
        trials: bytes,
        plugins: Mapping[str, bytes],
        statuses: Mapping[str, str] | None = None,
        ended: Sequence[bytes] = (),
    ) -> None:
        """Replace the saved state, which includes every fact appended so far; `ended` is added.

        `statuses`: Ray's status of trials that have not ended, which readers cannot derive from the facts.
        """
        ...

    def load(self) -> SavedExperiment: ...

    def close(self) -> None: ...


class CheckpointFiles(Protocol):
    """CheckpointFiles check and delete the directories of checkpoints."""

    def check(self, command: StartTrial) -> StartTrial:
        """Return the command, with another checkpoint when the files of the given one are incomplete."""
        ...

    def discard(self, refs: Sequence[CheckpointRef]) -> None:
        """Delete checkpoints that nothing can need again, without blocking."""
        ...


class Saver(Protocol):
    """Writes snapshots of an experiment, from which a restore starts."""

    def is_due(self) -> bool:
        """Return whether a snapshot should be written now."""
        ...

    def save(self, flush: Callable[[], None], *, is_last: bool = False) -> None:
        """Write a snapshot, or skips it; `flush` makes all facts so far durable and is called before it."""
        ...
