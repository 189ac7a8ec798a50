"""Defines the LightGBM callbacks, for `lightgbm.train(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.tune.integration import BoosterCallback, ReportOnly, send

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(BoosterCallback):
    """A TuneReportCheckpointCallback reports LightGBM's metrics after each round, and saves the model.

    A callback that stops early ends the training without a last call of this one: with early stopping, save
    by `frequency`.
    """

    CHECKPOINT_NAME = "model.txt"
    _framework = "LightGBM"
    order = 20  # before LightGBM's early stopping (30), which ends the round
    before_iteration = False

    def __call__(self, env: Any) -> None:  # noqa: ANN401 - LightGBM's CallbackEnv
        found = self._chosen(_found(env.evaluation_result_list or ()))
        rounds = env.iteration - env.begin_iteration + 1
        is_last = env.iteration == env.end_iteration - 1
        if self._is_due(rounds) or (is_last and self._at_end):
            send(found, lambda directory: env.model.save_model(str(Path(directory, self._filename))))
        else:
            send(found)


class TuneReportCallback(ReportOnly, TuneReportCheckpointCallback):
    """A TuneReportCallback reports only; it is an older name of Ray's."""


def _found(entries: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the metrics: `train` passes (data, metric, value, is higher better); `cv` a mean and spread."""
    found: dict[str, Any] = {}
    for dataset, metric, value, _, *spread in entries:
        if spread:
            found[f"{dataset}-{metric}-mean"] = float(value)
            found[f"{dataset}-{metric}-stdv"] = float(spread[0])
        else:
            found[f"{dataset}-{metric}"] = float(value)
    return found
