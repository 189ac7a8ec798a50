"""Define SearchAlgorithm, from which the controller takes trials, with Ray's method names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.base.ids import IdSource
from muster.errors import RestoreError, public_constructor
from muster.host.atomic_write import atomic_write
from muster.trials.model import Trial
from muster.trials.template import TrialTemplate

Names = str | list[str] | None
Experiments = TrialTemplate | Sequence[TrialTemplate] | Mapping[str, TrialTemplate]


def newest_state_file(directory: str, prefix: str) -> Path | None:
    """Return the last state file by name, because names end in the time of the session."""
    found = sorted(Path(directory).glob(f"{prefix}-*"), key=lambda path: path.name)
    return found[-1] if found else None


def stored_search_state(directory: str) -> bytes | None:
    """Return the state of the search that an experiment saved in its store; None when there is none."""
    from muster.stores.experiment.reader import STORE_NAME, open_trials

    if not (Path(directory) / STORE_NAME).is_file():
        return None
    with open_trials(directory) as reader:
        return reader.plugins().get("search")


def write_state_file(path: Path, content: bytes) -> None:
    """Make the directory where there is none, and replaces the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content, fsync=True)


def decoded_state(owner: object, decode: Callable[[bytes], Any], state: bytes) -> dict[str, Any]:
    """Return a saved state of the owner, of the version that this muster reads."""
    name = type(owner).__name__
    try:
        saved = dict(decode(state))
        version = saved["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"{name}: this is not a saved state of it ({error})") from error
    if version != 1:
        raise RestoreError(f"{name}: its state has version {version}", fix="this muster reads version 1")
    return saved


class SearchAlgorithm:
    """Makes trials one by one and receives their results.

    `save_state` and `restore_state` are called by the controller; the `*_dir` methods are Ray's.
    """

    state_file_prefix = "search-alg-state"
    _metric: Any = None

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**options)
        public_constructor(cls)

    @property
    def metric(self) -> Any:  # noqa: ANN401 - a name, or several
        """The metric to optimize."""
        return self._metric

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        """Take metric, mode and space from the experiment; False when some of them were set already.

        Args:
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
            config: The search space.
            spec: Further settings.
        """
        del mode, config, spec
        if self._metric and metric:
            return False
        if metric:
            self._metric = metric
        return True

    @property
    def total_samples(self) -> int:
        """Return how many trials there will be, as far as is known."""
        return 0

    def add_configurations(self, experiments: Experiments) -> None:
        """Add experiments to search."""
        raise NotImplementedError

    def next_trial(self) -> Trial | None:
        """Return the next trial; None when there is none now."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Called with an intermediate result.

        Args:
            trial_id: The trial's id.
            result: The result.
        """

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called at the end of a trial.

        Args:
            trial_id: The trial's id.
            result: The last result.
            error: Whether the trial failed.
        """

    def is_finished(self) -> bool:
        """Return whether no further trial will come."""
        raise NotImplementedError

    def set_finished(self) -> None:
        """Suggest no further trial."""
        raise NotImplementedError

    def save_state(self) -> bytes:
        """Return the state."""
        raise NotImplementedError

    def restore_state(self, state: bytes) -> None:
        """Load a state."""
        raise NotImplementedError

    def has_checkpoint(self, dirpath: str) -> bool:
        """Return whether the directory holds a state."""
        return newest_state_file(dirpath, self.state_file_prefix) is not None

    def save_to_dir(
        self,
        dirpath: str,
        session_str: str = "default",
        **kwargs: object,  # what Ray's callers add
    ) -> None:
        """Write the state into a directory.

        Args:
            dirpath: The directory.
            session_str: Part of the file's name.
            kwargs: Room for what Ray's callers add.
        """
        write_state_file(Path(dirpath) / f"{self.state_file_prefix}-{session_str}.json", self.save_state())

    def restore_from_dir(self, dirpath: str) -> None:
        """Load the state from a directory."""
        found = newest_state_file(dirpath, self.state_file_prefix)
        state = stored_search_state(dirpath) if found is None else found.read_bytes()
        if state is None:
            raise RestoreError(
                f"{dirpath} has no {self.state_file_prefix}-* and is not an experiment: nothing to "
                "restore the search from"
            )
        self.restore_state(state)


def as_templates(experiments: Experiments) -> list[TrialTemplate]:
    if isinstance(experiments, TrialTemplate):
        return [experiments]
    return list(experiments.values() if isinstance(experiments, Mapping) else experiments)


def hex_digits(ids: IdSource, count: int) -> str:
    """Return digits that differ between runs with real ids and repeat with counting ones."""
    return hashlib.sha256(ids.fresh("trial").encode()).hexdigest()[:count]
