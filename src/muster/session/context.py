"""Defines TuneContext, from which a trial reads its own names and directory, with Ray's getters."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any

from muster.session.publish import checkpoint_name


class TrialStorage:
    """A TrialStorage names the places of a trial's results, with the names of Ray's storage context.

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
    """A TuneContext holds names, directory and resources of the running trial; all None outside of one."""

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
        """Returns the name of the experiment this trial belongs to."""
        return self._experiment_name

    def get_trial_name(self) -> str | None:
        return self._trial_name

    def get_trial_id(self) -> str | None:
        return self._trial_id

    def get_trial_resources(self) -> Any:  # noqa: ANN401
        """Returns the PlacementGroupFactory of this trial."""
        return self._resources

    def get_trial_dir(self) -> str | None:
        """Returns the directory that holds the files of this trial."""
        return self._trial_dir

    def get_storage(self) -> TrialStorage | None:
        """Returns the places of the trial's files; None outside of a trial."""
        return None if self._trial_dir is None else TrialStorage(self._trial_dir, self._storage)

    def get_metadata(self) -> dict[str, Any]:
        raise DeprecationWarning("get_metadata belongs to Ray Train; a trial has no such metadata")

    def get_world_size(self) -> int:
        return self._rank_shim("get_world_size", 1)

    def get_world_rank(self) -> int:
        return self._rank_shim("get_world_rank", 0)

    def get_local_rank(self) -> int:
        return self._rank_shim("get_local_rank", 0)

    def get_local_world_size(self) -> int:
        return self._rank_shim("get_local_world_size", 1)

    def get_node_rank(self) -> int:
        return self._rank_shim("get_node_rank", 0)

    @staticmethod
    def _rank_shim(name: str, answer: int) -> int:
        warnings.warn(
            f"{name} belongs to Ray Train; a trial is one process, so the answer is always {answer}",
            DeprecationWarning,
            stacklevel=3,
        )
        return answer
