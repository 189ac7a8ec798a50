"""Define the LightGBM callbacks, for `lightgbm.train(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.tune.integration import BoosterCallback, ReportOnly, by_name, send

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(BoosterCallback):
    """Reports LightGBM's metrics after each round, and saves the model.

    A callback that stops early ends the training without a last call of this one: with early stopping, save
    by `frequency`.

    Args:
        filename: The model's file name in the checkpoint.
        frequency: Save every so many rounds; 0: never.
        checkpoint_at_end: Save after the last round.
    """

    CHECKPOINT_NAME = "model.txt"
    _framework = "LightGBM"
    order = 20  # before LightGBM's early stopping (30), which ends the round
    before_iteration = False

    def __call__(self, env: Any) -> None:  # noqa: ANN401 - LightGBM's CallbackEnv
        newest = (
            (f"{data}-{name}", (float(value), float(spread[0])) if spread else float(value))
            for data, name, value, _, *spread in env.evaluation_result_list or ()
        )  # `train` passes (data, metric, value, is higher better); `cv` a mean and spread
        found = self._chosen(by_name(newest, "stdv"))
        rounds = env.iteration - env.begin_iteration + 1
        is_last = env.iteration == env.end_iteration - 1
        if self._is_due(rounds) or (is_last and self._at_end):
            send(found, lambda directory: env.model.save_model(str(Path(directory, self._filename))))
        else:
            send(found)


class TuneReportCallback(ReportOnly, TuneReportCheckpointCallback):
    """Reports only; it is an older name of Ray's.

    Args:
        metrics: As for TuneReportCheckpointCallback.
        results_postprocessing_fn: As for TuneReportCheckpointCallback.
    """
