"""Chooses the callbacks of an experiment: the user's, those of the environment, and the default loggers."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from muster.base.untrusted import message_text

if TYPE_CHECKING:
    from muster.tune.logger.files.writer import LogWriter

VARIABLE = "RAY_TUNE_CALLBACKS"
NO_LOGGERS = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"


def default_callbacks(
    given: Iterable[Any] | None,
    environment: Mapping[str, str],
    reporter: Any = None,  # noqa: ANN401
) -> list[Any]:
    """Returns the user's callbacks, those of RAY_TUNE_CALLBACKS, the reporter, and missing default loggers.

    `environment` is only read. ValueError when a name in it cannot be imported or called.
    """
    from muster.tune.logger.csv import CSVLoggerCallback
    from muster.tune.logger.files.writer import FailureFiles
    from muster.tune.logger.json import JsonLoggerCallback
    from muster.tune.logger.tensorboardx import TBXLoggerCallback

    callbacks = [*(given or ()), *named_callbacks(environment.get(VARIABLE, ""))]
    if reporter is not None:
        callbacks.append(reporter)
    if environment.get(NO_LOGGERS, "0") != "1":
        for kind in (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback):
            if not any(isinstance(callback, kind) for callback in callbacks):
                callbacks.append(kind())
    callbacks.append(FailureFiles())
    return callbacks


def attach_loggers(callbacks: Iterable[Any], writer: LogWriter, experiment_dir: str) -> None:
    """Gives the experiment's writer to every callback with a method `attach`, which our own loggers have."""
    for callback in callbacks:
        if hasattr(callback, "attach"):
            callback.attach(writer, experiment_dir)


def file_kinds(callbacks: Iterable[Any]) -> int:
    """Returns which result files our own loggers among `callbacks` write, as flags of `trial_log`."""
    kinds = 0
    for callback in callbacks:
        kinds |= getattr(callback, "kinds", 0) if hasattr(callback, "attach") else 0
    return kinds


def named_callbacks(names: str) -> list[Any]:
    """Returns instances of comma-separated import paths (`package.module.Class`); blanks are ignored."""
    return [_named(name.strip()) for name in names.split(",") if name.strip()]


def _named(path: str) -> Any:  # noqa: ANN401 - a user's class
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ValueError(
            f"Failed to import callback from '{path}' ({message_text(error)}): correct or unset {VARIABLE}"
        ) from error
