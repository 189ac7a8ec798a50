"""Define the Session that engines install in the process of a trial, its TuneContext, and `current`.

Engines call `install`; `muster.session.report` calls `current`. Nothing here knows an engine.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from muster.session.publish import checkpoint_name

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.session.progress import Progress


class Session(Protocol):
    """What one running trial offers to the code that runs in it."""

    @property
    def context(self) -> TuneContext:
        """Name, directory and resources of the trial."""
        ...

    @property
    def progress(self) -> Progress:
        """Iterations and times so far; `Trainable.iteration` reads it."""
        ...

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Send one result; returns when the trial may continue, raises SystemExit when it must stop."""
        ...

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint of this trial: made by it, or the one it continues from."""
        ...

    def get_preemption_info(self) -> PreemptionInfo | None:
        """Return what is announced about the machine of the trial; None: nothing."""
        ...

    def should_checkpoint(self) -> bool:
        """Return whether the trial should report a checkpoint, because its machine will be taken."""
        ...


class TrialStopped(SystemExit):
    """Raised by `report` when the trial is to end; `except Exception` does not catch it."""


_current: ContextVar[Session | None] = ContextVar("muster_session", default=None)
# Threads of user code start with an empty context, yet may report: so a trial's process has a default.
_default: list[Session | None] = [None]


def current() -> Session | None:
    """Return the session of this context, else the one of this process, else None."""
    return _current.get() or _default[0]


def install(session: Session, *, whole_process: bool = False) -> Token[Session | None]:
    """Make `session` the current one; the caller gives the token to `uninstall`."""
    if whole_process:
        _default[0] = session
    return _current.set(session)


def uninstall(token: Token[Session | None]) -> None:
    _default[0] = None
    _current.reset(token)


def forget() -> None:
    """Remove the session that this process inherited from the one that forked it."""
    _default[0] = None
    _current.set(None)


EMPTIED = "consolidation"  # the node's trials are to continue elsewhere, because that costs less


class PreemptionInfo(NamedTuple):
    """Announces the loss of a machine, under Ray Train's names where they exist.

    Args:
        deadline: When the cloud reclaims the machine, in seconds since the epoch.
        kind: interruption, maintenance, rebalance or drain.
        source: Where the notice was read.
        node_id: The node.

    Example:
        >>> PreemptionInfo(deadline=1700000120.5, kind="interruption", node_id="ab").deadline_ms
        1700000120500
    """

    deadline: float | None = None  # seconds since the epoch; None: no time was named
    kind: str = "drain"  # interruption, maintenance, rebalance, EMPTIED; drain: somebody wants it to be empty
    source: str = ""  # where it was read, for people
    node_id: str = ""

    @property
    def deadline_ms(self) -> int | None:
        """The deadline in milliseconds, as in Ray Train."""
        return None if self.deadline is None else round(self.deadline * 1000)

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes that the cloud will reclaim."""
        return [self.node_id] if self.node_id else []

    @property
    def preempted_ranks(self) -> list[int]:
        """The rank of a trial, which is one process, is always 0."""
        return [0]

    @property
    def preempted_node_to_ranks(self) -> dict[str, list[int]]:
        """The ranks by node."""
        return dict.fromkeys(self.preempted_node_ids, self.preempted_ranks)

    def shifted(self, seconds: float) -> PreemptionInfo:
        """Return the same by a clock that is so far ahead."""
        return self if self.deadline is None else self._replace(deadline=self.deadline + seconds)

    def left_s(self, now: float) -> float:
        """Return the seconds until the deadline; infinity when none was named."""
        return float("inf") if self.deadline is None else self.deadline - now


class TrialStorage:
    """Names the places of a trial's results, with the names of Ray's storage context.

    `trial_working_directory` is on the machine of the trial, the other paths are on `storage_filesystem`.
    """

    def __init__(self, trial_dir: str, remote: bytes | None = None, index: int = -1) -> None:
        """`remote` is a pickle of the experiment's path on a remote storage and its fsspec file system."""
        self.trial_working_directory = self.trial_driver_staging_path = trial_dir
        here, self.trial_dir_name = os.path.split(trial_dir)
        self._remote = None if remote is None else pickle.loads(remote)
        self.experiment_fs_path: str = here if self._remote is None else self._remote[0]
        self.storage_fs_path, self.experiment_dir_name = os.path.split(self.experiment_fs_path)
        self.trial_fs_path = f"{self.experiment_fs_path}/{self.trial_dir_name}"
        self.experiment_driver_staging_path, self.current_checkpoint_index = here, index
        self.checkpoint_dir_name = checkpoint_name(index)
        self.checkpoint_fs_path = f"{self.trial_fs_path}/{self.checkpoint_dir_name}"

    @property
    def storage_filesystem(self) -> Any:  # noqa: ANN401
        """The file system of these paths: pyarrow's where it is installed, else fsspec's."""
        from muster.session.checkpoint import as_arrow

        if self._remote is not None and self._remote[1] is None:
            raise RuntimeError(
                "the storage_filesystem of the experiment cannot be pickled, so trials do not have it: "
                "make it in the trial, or use one that can be pickled"
            )
        return as_arrow(None if self._remote is None else self._remote[1])


class TuneContext:
    """Holds names, directory and resources of the running trial; all None outside of one.

    Args:
        experiment_name: The experiment's name.
        trial_name: The trial's name.
        trial_id: The trial's id.
        trial_dir: The trial's directory.
        resources: Its PlacementGroupFactory.
        storage: Where its files are copied to.
    """

    def __init__(
        self,
        *,
        experiment_name: str | None = None,
        trial_name: str | None = None,
        trial_id: str | None = None,
        trial_dir: str | None = None,
        resources: Any = None,  # noqa: ANN401 - a PlacementGroupFactory; this layer does not know it
        storage: bytes | None = None,  # of a remote storage, see TrialStorage
    ) -> None:
        self._experiment_name = experiment_name
        self._trial_name = trial_name
        self._trial_id = trial_id
        self._trial_dir = trial_dir
        self._resources = resources
        self._storage = storage

    def get_experiment_name(self) -> str | None:
        """Return the name of the experiment this trial belongs to."""
        return self._experiment_name

    def get_trial_name(self) -> str | None:
        """Return the trial's name."""
        return self._trial_name

    def get_trial_id(self) -> str | None:
        """Return the trial's id."""
        return self._trial_id

    def get_trial_resources(self) -> Any:  # noqa: ANN401
        """Return the PlacementGroupFactory of this trial."""
        return self._resources

    def get_trial_dir(self) -> str | None:
        """Return the directory that holds the files of this trial."""
        return self._trial_dir

    def get_storage(self) -> TrialStorage | None:
        """Return the places of the trial's files; None outside of a trial."""
        return None if self._trial_dir is None else TrialStorage(self._trial_dir, self._storage)

    def get_metadata(self) -> dict[str, Any]:
        """Return the experiment's metadata."""
        raise DeprecationWarning("get_metadata belongs to Ray Train; a trial has no such metadata")

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return self._rank_shim("get_world_size", 1)

    def get_world_rank(self) -> int:
        """Return this process's rank."""
        return self._rank_shim("get_world_rank", 0)

    def get_local_rank(self) -> int:
        """Return this process's rank on its node."""
        return self._rank_shim("get_local_rank", 0)

    def get_local_world_size(self) -> int:
        """Return the number of ranks on this node."""
        return self._rank_shim("get_local_world_size", 1)

    def get_node_rank(self) -> int:
        """Return the rank of this node."""
        return self._rank_shim("get_node_rank", 0)

    @staticmethod
    def _rank_shim(name: str, answer: int) -> int:
        warnings.warn(
            f"{name} belongs to Ray Train; this trial is one process, so the answer is always {answer}",
            DeprecationWarning,
            stacklevel=3,
        )
        return answer
