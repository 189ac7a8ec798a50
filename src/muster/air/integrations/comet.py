"""Comet: CometLoggerCallback on the driver. Imports comet_ml on its own thread, when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from muster.air.integrations.comet_tracker import CometSettings, CometTracker
from muster.host.machine import environment
from muster.tune.logger.tracker import Tracker, TrackerCallback, require

__all__ = ["CometLoggerCallback"]


class CometLoggerCallback(TrackerCallback):
    """Sends configs and results of every trial to Comet, one Comet experiment per trial.

    Nothing waits for the server: it is talked to on a thread, and when it is down the experiment goes on.

    Example:
        >>> callback = CometLoggerCallback(online=False, offline_directory="comet", tags=["lr-search"])
    """

    _secrets: ClassVar[tuple[str, ...]] = ("_api_key",)
    _api_key: str | None = None

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,  # noqa: ANN401 - of comet_ml.Experiment
    ) -> None:
        """`online=False` writes archives to be sent later with `comet upload`. `save_checkpoints`: as
        artifacts. `experiment_kwargs` go to `comet_ml.Experiment`; its `api_key` is not saved to disk.
        """
        require("comet_ml")
        self.online, self.tags = online, list(tags or ())
        self.wants_checkpoints = save_checkpoints
        self._api_key = experiment_kwargs.pop("api_key", None)
        self.experiment_kwargs = experiment_kwargs

    def setup(self, *args: Any, **info: Any) -> None:  # noqa: ANN401
        """ValueError when there is no key: better now than after the first trial."""
        variables = environment()
        settings_file = Path(variables.get("COMET_CONFIG", "~/.comet.config")).expanduser()
        if self.online and not (self._api_key or variables.get("COMET_API_KEY") or settings_file.is_file()):
            raise ValueError(
                "Comet has no key: set COMET_API_KEY, pass CometLoggerCallback(api_key=...), "
                "or online=False to write to this machine only"
            )

    def _make_tracker(self) -> Tracker:
        key = {"api_key": self._api_key} if self._api_key else {}
        return CometTracker(
            CometSettings(
                online=self.online, tags=self.tags, experiment_kwargs={**self.experiment_kwargs, **key}
            )
        )
