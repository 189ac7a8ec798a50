"""Define the Keras callbacks, for `model.fit(callbacks=[...])` inside a trainable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from muster.tune.integration import Metrics, chosen, events_of, send

__all__ = ["ReportCheckpointCallback", "TuneReportCallback", "TuneReportCheckpointCallback"]

Events = str | Sequence[str]


class ReportCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports Keras's logs and saves the model, `model.keras`, at given events."""

    CHECKPOINT_NAME = "model.keras"

    def __init__(
        self,
        checkpoint_on: Events = "epoch_end",
        report_metrics_on: Events = "epoch_end",
        metrics: Metrics = None,
    ) -> None:
        """Take events, which are Keras's without `on_`; a checkpoint always comes with a report.

        `metrics`: names, or `{name to report: name in Keras}`; None: all.
        """
        super().__init__()
        self._metrics, self._filename, self._every, self._seen = metrics, self.CHECKPOINT_NAME, 1, 0
        base = keras.callbacks.Callback
        saving, reporting = events_of(base, checkpoint_on), events_of(base, report_metrics_on)
        for event in {*saving, *reporting}:
            setattr(self, f"on_{event}", self._saved if event in saving else self._reported)

    def _reported(self, *arguments: Any, logs: Any = None) -> None:  # noqa: ANN401 - Keras gives `logs` last
        send(self._values(arguments, logs))

    def _saved(self, *arguments: Any, logs: Any = None) -> None:  # noqa: ANN401
        self._seen += 1
        values = self._values(arguments, logs)
        if self._seen % self._every:
            send(values)
        else:
            send(values, lambda directory: self.model.save(str(Path(directory, self._filename))))

    def _values(self, arguments: tuple[Any, ...], logs: Any) -> dict[str, Any]:  # noqa: ANN401
        found = logs if logs is not None else next((each for each in arguments if isinstance(each, dict)), {})
        return chosen(self._metrics, {name: float(value) for name, value in found.items()}, "Keras")


class TuneReportCheckpointCallback(ReportCheckpointCallback):
    """Ray's older name of ReportCheckpointCallback, with its arguments."""

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = ReportCheckpointCallback.CHECKPOINT_NAME,
        frequency: int = 1,
        on: Events = "epoch_end",
    ) -> None:
        super().__init__(checkpoint_on=on, report_metrics_on=on, metrics=metrics)
        self._filename, self._every = filename, frequency


class TuneReportCallback(ReportCheckpointCallback):
    """Reports only; it is an older name of Ray's."""

    def __init__(self, metrics: Metrics = None, on: Events = "epoch_end") -> None:
        super().__init__(checkpoint_on=(), report_metrics_on=on, metrics=metrics)
