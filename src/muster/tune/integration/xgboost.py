"""Defines the XGBoost callbacks, for `xgboost.train(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xgboost

from muster.session.checkpoint import Checkpoint
from muster.tune.integration.reporting import Metrics, chosen, opened, send

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """A TuneReportCheckpointCallback reports XGBoost's metrics after each round, and saves the model.

    The model of the end is reported with the metrics of the last round once more, when that round saved none.
    """

    CHECKPOINT_NAME = "model.ubj"

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Takes `metrics`: names, or `{name to report: name in XGBoost}`; None: all.

        `frequency`: save after every so many rounds; 0: not before the end. `results_postprocessing_fn` may
        change what is reported.
        """
        super().__init__()
        self._metrics, self._filename = metrics, filename
        self._frequency, self._at_end = frequency, checkpoint_at_end
        self._changed = results_postprocessing_fn or (lambda found: found)
        self._last: dict[str, Any] | None = None  # reported without a checkpoint
        self._rounds = 0

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:  # noqa: ANN401
        """Returns the `xgboost.Booster` of a checkpoint that this callback saved."""
        return opened(
            checkpoint, lambda directory: xgboost.Booster(model_file=str(Path(directory, filename)))
        )

    def before_training(self, model: Any) -> Any:  # noqa: ANN401 - a Booster
        self._last, self._rounds = None, 0
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:  # noqa: ANN401
        """Reports after a round; returns False, so that the training continues."""
        found = chosen(self._metrics, self._changed(_found(evals_log)), "XGBoost")
        self._rounds += 1
        if self._frequency > 0 and self._rounds % self._frequency == 0:
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


class TuneReportCallback(TuneReportCheckpointCallback):
    """A TuneReportCallback reports only; it is an older name of Ray's."""

    def __init__(
        self,
        metrics: Metrics = None,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )


def _found(evals_log: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the newest value of each metric; `cv` gives a mean and its spread."""
    found: dict[str, Any] = {}
    for dataset, metrics in evals_log.items():
        for metric, values in metrics.items():
            newest = values[-1]
            if isinstance(newest, tuple):
                found[f"{dataset}-{metric}-mean"], found[f"{dataset}-{metric}-std"] = newest
            else:
                found[f"{dataset}-{metric}"] = newest
    return found
