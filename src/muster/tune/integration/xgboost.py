"""Define the XGBoost callbacks, for `xgboost.train(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xgboost

from muster.tune.integration import BoosterCallback, ReportOnly, by_name, send

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(BoosterCallback, xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Reports XGBoost's metrics after each round, and saves the model.

    The model of the end is reported with the metrics of the last round once more, when that round saved none.
    """

    CHECKPOINT_NAME = "model.ubj"
    _framework = "XGBoost"
    _last: dict[str, Any] | None = None  # reported without a checkpoint
    _rounds = 0

    def before_training(self, model: Any) -> Any:  # noqa: ANN401 - a Booster
        self._last, self._rounds = None, 0
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:  # noqa: ANN401
        """Report after a round; returns False, so that the training continues."""
        newest = (
            (f"{data}-{name}", log[-1]) for data, logs in evals_log.items() for name, log in logs.items()
        )
        found = self._chosen(by_name(newest, "std"))
        self._rounds += 1
        if self._is_due(self._rounds):
            send(found, lambda directory: self._save(model, directory))
            self._last = None
        else:
            send(found)
            self._last = found
        return False

    def after_training(self, model: Any) -> Any:  # noqa: ANN401 - a Booster
        if self._at_end and self._last is not None:
            send(self._last, lambda directory: self._save(model, directory))
        return model

    def _save(self, model: Any, directory: str) -> None:  # noqa: ANN401
        if not hasattr(model, "save_model"):
            raise TypeError(
                "xgboost.cv has no single model to save: pass checkpoint_at_end=False, frequency=0"
            )
        model.save_model(str(Path(directory, self._filename)))


class TuneReportCallback(ReportOnly, TuneReportCheckpointCallback):
    """Reports only; it is an older name of Ray's."""
