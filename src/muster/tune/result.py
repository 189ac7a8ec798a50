"""Define Result, the outcome of one trial, and the names of result keys, at Ray's import path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.errors import public
from muster.session.checkpoint import Checkpoint, as_arrow, as_fsspec
from muster.session.older import accept_older
from muster.tune.analysis.result_files import *  # noqa: F403 - Ray's place for them
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS, COST_USD, Scored, TrialFolder, opened_place
from muster.tune.analysis.tables import Row, best_scored, check_mode, frame

if TYPE_CHECKING:
    import pandas as pd


@public
class Result:
    """The outcome of one trial.

    Args:
        metrics: The last result.
        checkpoint: The newest checkpoint.
        error: The exception that ended the trial.
        path: The trial's directory.
        metrics_dataframe: All results; read from `path` when it is not given.
        best_checkpoints: Retained checkpoints with their results.
        _storage_filesystem: The file system of `path`.
        rows: All results as dicts.
        config: The configuration.
        cost_usd: What the trial has cost.

    Attributes:
        metrics: The last result, nested as it was reported.
        checkpoint: The newest checkpoint.
        error: The exception that ended the trial, a TuneError if it raised none; None when it ended well.
        path: The trial's directory.
        best_checkpoints: Retained checkpoints with their results, the best last.
        cost_usd: What the trial has cost in $, in all its attempts; None when a price was not known.
    """

    def __init__(  # noqa: PLR0913 - Ray's fields, in Ray's order
        self,
        metrics: dict[str, Any] | None,
        checkpoint: Checkpoint | None,
        error: BaseException | None,
        path: str,
        metrics_dataframe: pd.DataFrame | None = None,
        best_checkpoints: list[Scored] | None = None,
        _storage_filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
        *,
        rows: Callable[[], Sequence[Row]] | None = None,
        config: dict[str, Any] | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """`rows` reads all logged results on demand; `config`: for a trial without any."""
        self.metrics = metrics
        self.checkpoint = checkpoint
        self.error = error
        self.path = path
        self.best_checkpoints = best_checkpoints
        self._storage_filesystem = _storage_filesystem
        self._frame = metrics_dataframe
        self._rows = rows
        self._config = config
        self.cost_usd = cost_usd

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration that was tried."""
        found: dict[str, Any] | None = (self.metrics or {}).get("config", self._config)
        return found

    @property
    def log_dir(self) -> Path:
        """The trial's directory, by its older name."""
        accept_older("Result.log_dir", "use result.path")
        return Path(self.path)

    @property
    def filesystem(self) -> Any:  # noqa: ANN401 - neither library has types
        """The file system on which `path` is: pyarrow's where it is installed, else fsspec's."""
        return as_arrow(as_fsspec(self._storage_filesystem))

    @property
    def metrics_history(self) -> list[Row]:
        """Every logged result, nested, without pandas; empty when nothing was logged."""
        return [] if self._rows is None else list(self._rows())

    @property
    def metrics_dataframe(self) -> pd.DataFrame | None:
        """Every logged result as a line, with flat columns; needs pandas."""
        if self._frame is None and self._rows is not None:
            self._frame = frame(self._rows(), "Result.metrics_dataframe")
        return self._frame

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Return the best of `best_checkpoints` by any metric; nested ones as `a/b`.

        Args:
            metric: The metric of the checkpoint's result.
            mode: "min" or "max".
        """
        check_mode(mode, "Result.get_best_checkpoint")
        if not self.best_checkpoints:
            raise RuntimeError(f"No checkpoint exists in the trial directory {self.path}")
        best = best_scored(self.best_checkpoints, metric, mode)
        if best is None:
            known = sorted({str(key) for _, metrics in self.best_checkpoints for key in metrics})
            raise RuntimeError(
                f"Invalid metric name {metric!r}: no checkpoint of {self.path} was reported with a number of "
                f"that name. Reported: {', '.join(known)}"
            )
        return best

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: Any = None,  # noqa: ANN401 - untyped fsspec
    ) -> Result:
        """Read the directory of a trial; RuntimeError when there is none, or no results in it.

        Args:
            path: The trial's directory.
            storage_filesystem: A pyarrow or fsspec file system for `path`.
        """
        place, filesystem = opened_place(os.fspath(path), storage_filesystem)
        folder = TrialFolder(place, filesystem)
        if not folder.exists():
            raise RuntimeError(f"Trial folder {place} does not exist: give the directory of one trial")
        try:
            rows = folder.rows()
        except FileNotFoundError as error:
            raise RuntimeError(f"Cannot read a trial: {error}") from error
        checkpoints = folder.checkpoints(lambda: rows)
        return cls(
            metrics=dict(rows[-1]) if rows else {},
            checkpoint=checkpoints[-1][0] if checkpoints else None,
            error=folder.error(),
            path=place,
            best_checkpoints=checkpoints,
            _storage_filesystem=filesystem,
            rows=partial(list, rows),
            cost_usd=rows[-1].get(COST_USD) if rows else None,
        )

    def __repr__(self) -> str:
        metrics = {key: value for key, value in (self.metrics or {}).items() if key not in AUTO_RESULT_KEYS}
        shown = [] if self.error is None else [f"error={type(self.error).__name__!r}"]
        filesystem = self._storage_filesystem
        protocol = getattr(filesystem, "protocol", type(filesystem).__name__)
        kind = "local" if filesystem is None else protocol if isinstance(protocol, str) else protocol[0]
        shown += [
            f"metrics={metrics!r}",
            f"config={self.config!r}",
            f"path={self.path!r}",
            f"filesystem={kind!r}",
            f"checkpoint={self.checkpoint!r}",
        ]
        inner = ",\n".join(f"  {each}" for each in shown)
        return f"Result(\n{inner}\n)"
