"""Define callbacks that report a framework's metrics and checkpoints to the tuner, and what they share.

Each module (`lightgbm`, `xgboost`, `pytorch_lightning`, `keras`, `ray_train`) needs the framework that it is
named after.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from muster.session.checkpoint import Checkpoint
from muster.session.report import report

Metrics = str | Sequence[str] | Mapping[str, str] | None
Postprocess = Callable[[dict[str, Any]], dict[str, Any]]


def chosen(metrics: Metrics, found: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """Return the metrics to report: all, those named, or renamed ones (`{reported: found}`)."""
    if metrics is None:
        return dict(found)
    names = (metrics,) if isinstance(metrics, str) else metrics
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    if missing := sorted(set(wanted.values()) - set(found)):
        raise KeyError(
            f"{framework} has no metric {', '.join(missing)}; it has {', '.join(sorted(found)) or 'none yet'}"
        )
    return {name: found[source] for name, source in wanted.items()}


def send(values: Mapping[str, Any], save: Callable[[str], object] | None = None) -> None:
    """Report metrics; with `save`, which is given an empty directory, also a checkpoint."""
    if save is None:
        report(dict(values))
        return
    with tempfile.TemporaryDirectory() as directory:
        save(directory)
        report(dict(values), checkpoint=Checkpoint.from_directory(directory))


def by_name(newest: Iterable[tuple[str, Any]], spread: str) -> dict[str, Any]:
    """Return metrics by name; a value that is a pair is a mean and its spread, as of `cv`."""
    found: dict[str, Any] = {}
    for name, value in newest:
        if isinstance(value, tuple):
            found[f"{name}-mean"], found[f"{name}-{spread}"] = value
        else:
            found[name] = value
    return found


def events_of(base: type, on: str | Sequence[str]) -> tuple[str, ...]:
    """Return the events that `on` names; ValueError for one that the framework's callback does not have."""
    events = (on,) if isinstance(on, str) else tuple(on)
    known = [name.removeprefix("on_") for name in dir(base) if name.startswith("on_")]
    if unknown := sorted({*events} - {*known}):
        raise ValueError(f"on={', '.join(unknown)}: there is no such event, but {', '.join(known)}")
    return events


class BoosterCallback:
    """Holds what the callbacks of LightGBM and XGBoost share."""

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
        """Take `metrics`: names, or `{name to report: name in the framework}`; default: all.

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
        """Return the `Booster` of a checkpoint that this callback saved."""
        booster = import_module(cls._framework.lower()).Booster
        with checkpoint.as_directory() as directory:
            return booster(model_file=str(Path(directory, filename or cls.CHECKPOINT_NAME)))


class ReportOnly:
    """ReportOnly turns a BoosterCallback into one that saves nothing; under an older name of Ray's."""

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Postprocess | None = None) -> None:
        super().__init__(  # type: ignore[call-arg]
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )
