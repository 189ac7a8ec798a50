"""Define the PyTorch Lightning callbacks, for `Trainer(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muster.session.checkpoint import Checkpoint
from muster.session.report import report
from muster.tune.integration import Metrics, chosen, events_of

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:  # the older name of the same package
    from pytorch_lightning.callbacks import Callback

__all__ = ["TuneCallback", "TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneCallback(Callback):  # type: ignore[misc]
    """Base of callbacks that call `_handle(trainer, module)` at given events of Lightning.

    Nothing is called during Lightning's sanity check: no training has happened yet.
    """

    def __init__(self, on: str | Sequence[str] = "validation_end") -> None:
        """Take events of Lightning without their `on_`."""
        super().__init__()
        for event in events_of(Callback, on):
            setattr(self, f"on_{event}", self._happened)

    def _happened(self, trainer: Any, module: Any = None, *_: Any, **__: Any) -> None:  # noqa: ANN401
        if not trainer.sanity_checking:
            self._handle(trainer, module)

    def _handle(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's
        raise NotImplementedError


class TuneReportCheckpointCallback(TuneCallback):
    """Reports metrics and saves the trainer's checkpoint, at given events."""

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        """Take `metrics`: names, or `{name to report: name in Lightning}`; None: all of `callback_metrics`.

        `filename`: of the checkpoint in its directory. `on`: Lightning's events without `on_`.
        """
        super().__init__(on)
        self._metrics, self._filename, self._saves = metrics, filename, save_checkpoints

    # Libraries override these methods, by Ray's private names.
    def _handle(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's
        if (values := self._get_report_dict(trainer, pl_module)) is None:
            return
        with self._get_checkpoint(trainer) if self._saves else nullcontext() as checkpoint:
            report(values, checkpoint=checkpoint)

    def _get_report_dict(self, trainer: Any, pl_module: Any) -> dict[str, Any] | None:  # noqa: ANN401
        del pl_module
        found = {
            name: value.item() if hasattr(value, "item") else value
            for name, value in trainer.callback_metrics.items()
        }
        return chosen(self._metrics, found, "Lightning")

    @contextmanager
    def _get_checkpoint(self, trainer: Any) -> Iterator[Checkpoint]:  # noqa: ANN401 - Lightning's
        with TemporaryDirectory() as folder:
            trainer.save_checkpoint(str(Path(folder, self._filename)))
            yield Checkpoint.from_directory(folder)


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports only; it is an older name of Ray's."""

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)
