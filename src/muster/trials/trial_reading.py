"""Ray's other names of what a Trial knows, for callbacks and loggers that read them. Read only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.trials.states import TrialState

if TYPE_CHECKING:
    from muster.trials.model import CheckpointPolicy, CheckpointRef


class TrialReading:
    """Base of Trial; everything here follows from its attributes."""

    __slots__ = ()

    if TYPE_CHECKING:
        checkpoint_policy: CheckpointPolicy
        error_filename: str | None
        experiment_dir: str
        last_result_time: float
        location: Mapping[str, Any]
        pickled_error_filename: str | None
        state: TrialState

        @property
        def checkpoint(self) -> CheckpointRef | None: ...
        @property
        def local_path(self) -> str | None: ...

    @property
    def checkpoint_freq(self) -> int:
        return self.checkpoint_policy.frequency

    @property
    def checkpoint_at_end(self) -> bool:
        return self.checkpoint_policy.at_end

    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None

    @property
    def has_reported_at_least_once(self) -> bool:
        return self.last_result_time > float("-inf")

    @property
    def is_saving(self) -> bool:
        """Its checkpoint is being made; a decision may wait for it."""
        return self.state is TrialState.SAVING

    @property
    def node_ip(self) -> str | None:
        """Of the machine it runs on; None before it runs."""
        found: str | None = self.location.get("node_ip")
        return found

    @property
    def experiment_dir_name(self) -> str:
        return self.experiment_dir.rstrip("/").rpartition("/")[2]

    @property
    def local_experiment_path(self) -> str:
        """The directory of the experiment, written in place."""
        return self.experiment_dir

    remote_experiment_path = local_experiment_path

    @property
    def error_file(self) -> str | None:
        """The text file about its failures; None when it has not failed."""
        return self._file(self.error_filename)

    @property
    def pickled_error_file(self) -> str | None:
        return self._file(self.pickled_error_filename)

    def _file(self, name: str | None) -> str | None:
        return f"{self.local_path}/{name}" if name and self.local_path else None
