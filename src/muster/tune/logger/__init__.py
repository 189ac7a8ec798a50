"""Exports the loggers under Ray's names; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.logger.csv import CSVLoggerCallback
    from muster.tune.logger.json import JsonLoggerCallback
    from muster.tune.logger.logger import LoggerCallback, pretty_print
    from muster.tune.logger.tensorboardx import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback", "pretty_print"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CSVLoggerCallback": ".csv",
        "JsonLoggerCallback": ".json",
        "LoggerCallback": ".logger",
        "TBXLoggerCallback": ".tensorboardx",
        "pretty_print": ".logger",
    },
)
