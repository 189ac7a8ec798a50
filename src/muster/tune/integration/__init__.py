"""Defines callbacks that report a framework's metrics and checkpoints to the tuner, and what they share.

Each module (`lightgbm`, `xgboost`, `pytorch_lightning`, `keras`, `ray_train`) needs the framework that it is
named after.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from muster.session.checkpoint import Checkpoint
from muster.session.report import report

Metrics = str | Sequence[str] | Mapping[str, str] | None
Postprocess = Callable[[dict[str, Any]], dict[str, Any]]


def chosen(metrics: Metrics, found: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """Returns the metrics to report: all, those named, or renamed ones (`{reported: found}`)."""
    if metrics is None:
        return dict(found)
    names = (metrics,) if isinstance(metrics, str) else metrics
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    missing = sorted(set(wanted.values()) - set(found))
    if missing:
        raise KeyError(
            f"{framework} has no metric {', '.join(missing)}; it has {', '.join(sorted(found)) or 'none yet'}"
        )
    return {name: found[source] for name, source in wanted.items()}


def send(values: Mapping[str, Any], save: Callable[[str], object] | None = None) -> None:
    """Reports metrics; with `save`, which is given an empty directory, also a checkpoint."""
    if save is None:
        report(dict(values))
        return
    with tempfile.TemporaryDirectory() as directory:
        save(directory)
        report(dict(values), checkpoint=Checkpoint.from_directory(directory))


class BoosterCallback:
    """A BoosterCallback holds what the callbacks of LightGBM and XGBoost share."""

    CHECKPOINT_NAME: ClassVar[str]
    _framework: ClassVar[str]

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        """Takes `metrics`: names, or `{name to report: name in the framework}`; default: all.

        `filename`: of the model in its checkpoint; default: `CHECKPOINT_NAME`. `frequency`: save after every
        so many rounds; 0: not before the end. `results_postprocessing_fn` may change what is reported.
        """
        super().__init__()
        self._metrics, self._filename = metrics, filename or self.CHECKPOINT_NAME
        self._frequency, self._at_end = frequency, checkpoint_at_end
        self._postprocess: Postprocess = results_postprocessing_fn or (lambda found: found)

    def _chosen(self, found: dict[str, Any]) -> dict[str, Any]:
        return chosen(self._metrics, self._postprocess(found), self._framework)

    def _is_due(self, rounds: int) -> bool:
        return self._frequency > 0 and rounds % self._frequency == 0

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str | None = None) -> Any:  # noqa: ANN401
        """Returns the `Booster` of a checkpoint that this callback saved."""
        booster = import_module(cls._framework.lower()).Booster
        with checkpoint.as_directory() as directory:
            return booster(model_file=str(Path(directory, filename or cls.CHECKPOINT_NAME)))


class ReportOnly:
    """ReportOnly turns a BoosterCallback into one that saves nothing; under an older name of Ray's."""

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Postprocess | None = None) -> None:
        super().__init__(  # type: ignore[call-arg]
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )
