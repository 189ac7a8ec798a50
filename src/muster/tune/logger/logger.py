"""Defines LoggerCallback, Ray's base class of loggers, and FileLogger, the base of those that write files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from muster.errors import TuneError
from muster.tune.callback import Callback

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.logger.files.trial_log import TrialLog
    from muster.tune.logger.files.writer import LogWriter


def trial_directory(experiment_dir: str, trial: Trial) -> str:
    """Returns a trial's directory, the same that the engine gets with StartTrial."""
    return f"{experiment_dir}/{trial.relative_logdir or trial.trial_id}"


def restored_iteration(trial: Trial) -> int | None:
    """Returns the iteration a starting trial resumes after; None when its own iterations do not tell.

    Without a checkpoint the trial begins anew: 0. From a checkpoint of another trial (an exploit), or one
    without an iteration, the trial continues, and its earlier steps are kept: None.
    """
    checkpoint = trial.newest
    if checkpoint is None:
        return 0
    own = trial.relative_logdir or trial.trial_id
    if f"/{own}/" not in checkpoint.path:
        return None
    iteration = checkpoint.metrics.get("training_iteration")
    return int(iteration) if isinstance(iteration, (int, float)) else None


class LoggerCallback(Callback):
    """A LoggerCallback is the base class of loggers: override the `log_` methods.

    Example:
        >>> class Lines(LoggerCallback):
        ...     def log_trial_result(self, iteration, trial, result):
        ...         print(trial, result["loss"])
    """

    def log_trial_start(self, trial: Trial) -> None:
        """Called when a trial's process is up."""

    def log_trial_restore(self, trial: Trial) -> None:
        """Called when a trial has loaded its checkpoint."""

    def log_trial_save(self, trial: Trial) -> None:
        """Called when a trial has saved a checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Called with every result of a trial."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Called when a trial is over."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self.log_trial_end(trial, failed=True)


class FileLogger(LoggerCallback):
    """A FileLogger gives results to the experiment's LogWriter, which `attach_loggers` attaches to it."""

    kinds: int = 0  # which files: JSON, CSV, TBX of trial_log
    _is_stock: ClassVar[bool] = False  # set by our own classes, in the class itself

    _writer: LogWriter | None = None
    _experiment_dir = ""

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        """Sets the writer, and the directory to write in."""
        self._writer, self._experiment_dir = writer, experiment_dir

    def merged_with(self, other: object) -> FileLogger | None:
        """Returns one logger for two neighbours that no subclass has changed; else None."""
        if not (isinstance(other, FileLogger) and _is_unchanged(self) and _is_unchanged(other)):
            return None
        if self._writer is None or self._writer is not other._writer:
            return None
        both = _FileLoggers()
        both.kinds = self.kinds | other.kinds
        both.attach(self._writer, self._experiment_dir)
        return both

    def log_trial_start(self, trial: Trial) -> None:
        log, writer = self._log(trial), self._attached()
        writer.start(log, self.kinds, trial.config, (trial.num_rows, restored_iteration(trial)))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._attached().row(self._log(trial), self.kinds, result)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._attached().end(trial.trial_id, failed=failed)

    def _log(self, trial: Trial) -> TrialLog:
        return self._attached().log(trial.trial_id, trial_directory(self._experiment_dir, trial))

    def _attached(self) -> LogWriter:
        if self._writer is None:
            raise TuneError(
                f"{type(self).__name__} has no files to write to: pass it in RunConfig(callbacks=[...])"
            )
        return self._writer


class _FileLoggers(FileLogger):
    """A _FileLoggers is several file loggers as one: a result is copied and queued once."""

    _is_stock = True

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        writer = self._writer
        assert writer is not None  # ensured by merged_with
        log = writer.running.get(trial.trial_id) or self._log(trial)
        writer.row(log, self.kinds, result)


def _is_unchanged(callback: FileLogger) -> bool:
    return bool(vars(type(callback)).get("_is_stock", False))


_LEFT_OUT = ("config", "hist_stats")


def pretty_print(result: Mapping[str, Any], exclude: set[str] | None = None) -> str:
    """Returns a result as YAML, without its config, what is None, and the keys in `exclude`.

    Example:
        >>> print(pretty_print({"loss": 0.5, "config": {"lr": 1}}))
        loss: 0.5
        <BLANKLINE>
    """
    import json

    import yaml

    from muster.tune.logger.files.json_rows import encode

    left_out = {*_LEFT_OUT, *(exclude or ())}
    shown = {key: value for key, value in result.items() if key not in left_out and value is not None}
    return str(yaml.safe_dump(json.loads(encode(shown)), default_flow_style=False))
