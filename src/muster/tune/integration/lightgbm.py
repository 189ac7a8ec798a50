"""Defines the LightGBM callbacks, for `lightgbm.train(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.session.checkpoint import Checkpoint
from muster.tune.integration.reporting import Metrics, chosen, opened, send

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback:
    """A TuneReportCheckpointCallback reports LightGBM's metrics after each round, and saves the model.

    A callback that stops early ends the training without a last call of this one: with early stopping, save
    by `frequency`.
    """

    CHECKPOINT_NAME = "model.txt"
    order = 20  # before LightGBM's early stopping (30), which ends the round
    before_iteration = False

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Takes `metrics`: names, or `{name to report: name in LightGBM}`; None: all.

        `frequency`: save after every so many rounds; 0: not before the end. `results_postprocessing_fn` may
        change what is reported.
        """
        self._metrics, self._filename = metrics, filename
        self._frequency, self._at_end = frequency, checkpoint_at_end
        self._changed = results_postprocessing_fn or (lambda found: found)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:  # noqa: ANN401
        """Returns the `lightgbm.Booster` of a checkpoint that this callback saved."""
        import lightgbm

        return opened(
            checkpoint, lambda directory: lightgbm.Booster(model_file=str(Path(directory, filename)))
        )

    def __call__(self, env: Any) -> None:  # noqa: ANN401 - LightGBM's CallbackEnv
        found = chosen(self._metrics, self._changed(_found(env.evaluation_result_list or ())), "LightGBM")
        rounds = env.iteration - env.begin_iteration + 1
        is_last = env.iteration == env.end_iteration - 1
        is_due = self._frequency > 0 and rounds % self._frequency == 0
        if is_due or (is_last and self._at_end):
            send(found, lambda directory: env.model.save_model(str(Path(directory, self._filename))))
        else:
            send(found)


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


def _found(entries: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the metrics: `train` passes (data, metric, value, is higher better); `cv` a mean and spread."""
    found: dict[str, Any] = {}
    for dataset, metric, value, _, *spread in entries:
        if spread:
            found[f"{dataset}-{metric}-mean"], found[f"{dataset}-{metric}-stdv"] = (
                float(value),
                float(spread[0]),
            )
        else:
            found[f"{dataset}-{metric}"] = float(value)
    return found
