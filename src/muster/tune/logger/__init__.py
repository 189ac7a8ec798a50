"""Export the loggers under Ray's names; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.logger.csv import CSVLoggerCallback as CSVLoggerCallback
    from muster.tune.logger.json import JsonLoggerCallback as JsonLoggerCallback
    from muster.tune.logger.logger import LoggerCallback as LoggerCallback
    from muster.tune.logger.logger import pretty_print as pretty_print
    from muster.tune.logger.tensorboardx import TBXLoggerCallback as TBXLoggerCallback
else:
    from muster.tune.older_modules import with_older_names

    _load, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".csv": ["CSVLoggerCallback"],
            ".json": ["JsonLoggerCallback"],
            ".logger": ["LoggerCallback", "pretty_print"],
            ".tensorboardx": ["TBXLoggerCallback"],
        },
    )
    __getattr__ = with_older_names(_load, "logger.")
