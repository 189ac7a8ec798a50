"""Defines the PyTorch Lightning callbacks, for `Trainer(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.tune.integration import Metrics, chosen, send

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:  # the older name of the same package
    from pytorch_lightning.callbacks import Callback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCheckpointCallback(Callback):  # type: ignore[misc]
    """A TuneReportCheckpointCallback reports metrics and saves the trainer's checkpoint, at given events.

    Nothing is reported during Lightning's sanity check: no training has happened yet.
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        """Takes `metrics`: names, or `{name to report: name in Lightning}`; None: all of `callback_metrics`.

        `filename`: of the checkpoint in its directory. `on`: Lightning's events without `on_`.
        """
        super().__init__()
        self._metrics, self._filename, self._saves = metrics, filename, save_checkpoints
        events = (on,) if isinstance(on, str) else tuple(on)
        unknown = [event for event in events if not hasattr(Callback, f"on_{event}")]
        if unknown:
            raise ValueError(
                f"on={', '.join(unknown)}: Lightning has no such event; the usual ones are 'validation_end' "
                f"and 'train_epoch_end'"
            )
        for event in events:
            setattr(self, f"on_{event}", self._happened)

    def _happened(self, trainer: Any, *ignored: Any, **also_ignored: Any) -> None:  # noqa: ANN401
        if trainer.sanity_checking:
            return
        found = {
            name: value.item() if hasattr(value, "item") else value
            for name, value in trainer.callback_metrics.items()
        }
        values = chosen(self._metrics, found, "Lightning")
        if self._saves:
            send(values, lambda directory: trainer.save_checkpoint(str(Path(directory, self._filename))))
        else:
            send(values)


class TuneReportCallback(TuneReportCheckpointCallback):
    """A TuneReportCallback reports only; it is an older name of Ray's."""

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)
