"""Run the loggers of Ray 1, one per trial: `tune.run(loggers=[...])`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from muster.tune.logger.logger import LoggerCallback


class Logger:
    """Base class of Ray 1's loggers: override `_init`, `on_result` and `close`."""

    def __init__(self, config: dict[str, Any], logdir: str, trial: Any = None) -> None:  # noqa: ANN401 - a Trial
        self.config, self.logdir, self.trial = config, logdir, trial
        self._init()

    def _init(self, *_: object) -> None:
        """Do nothing."""

    on_result = update_config = flush = close = _init


class LegacyLoggerCallback(LoggerCallback):
    """Passes the results of each trial to its own loggers."""

    def __init__(self, logger_classes: Iterable[type[Logger]]) -> None:
        self._classes, self._open = tuple(logger_classes), dict[str, list[Logger]]()

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:  # noqa: ANN401
        if trial.trial_id not in self._open:
            self._open[trial.trial_id] = [kind(trial.config, trial.logdir, trial) for kind in self._classes]
        for logger in self._open[trial.trial_id]:
            logger.on_result(result)

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:  # noqa: ANN401
        for logger in self._open.pop(trial.trial_id, ()):
            logger.close()


def callbacks_of(loggers: Iterable[Any]) -> list[LoggerCallback]:
    """Return the callbacks that do what these loggers of Ray 1 do."""
    others = [kind for kind in loggers if not issubclass(kind, LoggerCallback)]
    return [kind() for kind in loggers if kind not in others] + [LegacyLoggerCallback(others)]
