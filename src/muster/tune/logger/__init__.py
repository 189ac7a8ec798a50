"""Loggers with Ray's names; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.tune.logger.csv import CSVLoggerCallback
    from muster.tune.logger.json import JsonLoggerCallback
    from muster.tune.logger.logger import LoggerCallback
    from muster.tune.logger.tensorboard import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]

_HOMES = {
    "CSVLoggerCallback": "csv",
    "JsonLoggerCallback": "json",
    "LoggerCallback": "logger",
    "TBXLoggerCallback": "tensorboard",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
