"""Defines TuneContext, from which a trial reads its own names and directory, with Ray's getters."""

from __future__ import annotations

import warnings
from typing import Any


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
    ) -> None:
        self._experiment_name = experiment_name
        self._trial_name = trial_name
        self._trial_id = trial_id
        self._trial_dir = trial_dir
        self._resources = resources

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

    def get_storage(self) -> Any:  # noqa: ANN401
        """Returns None: results and checkpoints are written below `get_trial_dir()`."""
        return None

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
