"""Define LoggerCallback, Ray's base class of loggers, and chooses the callbacks of an experiment."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import message_text
from muster.tune.callback import Callback

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter

VARIABLE = "RAY_TUNE_CALLBACKS"
NO_LOGGERS = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"


def trial_directory(experiment_dir: str, trial: Trial) -> str:
    """Return a trial's directory, the same that the engine gets with StartTrial."""
    return f"{experiment_dir}/{trial.relative_logdir or trial.trial_id}"


def restored_iteration(trial: Trial) -> int | None:
    """Return the iteration a starting trial resumes after; None when its own iterations do not tell.

    Without a checkpoint the trial starts over: 0. From a checkpoint of another trial (an exploit), or one
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
    """The base class of loggers: override the `log_` methods.

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
        """Called with every result of a trial.

        Args:
            iteration: The turn of the control loop.
            trial: The trial.
            result: The result.
        """

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Called when a trial is over.

        Args:
            trial: The trial.
            failed: Whether it failed.
        """

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


_LEFT_OUT = ("config", "hist_stats")


def pretty_print(result: Mapping[str, Any], exclude: set[str] | None = None) -> str:
    """Return a result as YAML, without its config, what is None, and the keys in `exclude`.

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


def default_callbacks(
    given: Iterable[Any] | None,
    environment: Mapping[str, str],
    reporter: Any = None,  # noqa: ANN401
) -> list[Any]:
    """Return the user's callbacks, those of RAY_TUNE_CALLBACKS, the reporter, and missing default loggers.

    `environment` is only read. ValueError when a name in it cannot be imported or called.
    """
    from muster.tune.logger.csv import CSVLoggerCallback
    from muster.tune.logger.files.writer import FailureFiles
    from muster.tune.logger.json import JsonLoggerCallback
    from muster.tune.logger.tensorboardx import TBXLoggerCallback

    names = [name.strip() for name in environment.get(VARIABLE, "").split(",")]
    callbacks = [*(given or ()), *(_named(name) for name in names if name)]
    if reporter is not None:
        callbacks.append(reporter)
    if environment.get(NO_LOGGERS, "0") != "1":
        for kind in (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback):
            if not any(isinstance(callback, kind) for callback in callbacks):
                callbacks.append(kind())
    callbacks.append(FailureFiles())
    return callbacks


def attach_loggers(callbacks: Iterable[Any], writer: LogWriter, experiment_dir: str) -> None:
    """Give the experiment's writer to every callback with a method `attach`, which our own loggers have."""
    for callback in callbacks:
        if hasattr(callback, "attach"):
            callback.attach(writer, experiment_dir)


def file_kinds(callbacks: Iterable[Any]) -> int:
    """Return which result files our own loggers among `callbacks` write, as flags of `trial_log`."""
    kinds = 0
    for callback in callbacks:
        kinds |= getattr(callback, "kinds", 0) if hasattr(callback, "attach") else 0
    return kinds


def _named(path: str) -> Any:  # noqa: ANN401 - a user's class
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ValueError(
            f"Failed to import callback from '{path}' ({message_text(error)}): correct or unset {VARIABLE}"
        ) from error
