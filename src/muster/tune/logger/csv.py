"""CSVLoggerCallback: progress.csv."""

from __future__ import annotations

from muster.tune.logger.logger import FileLogger
from muster.tune.logger.trial_log import CSV


class CSVLoggerCallback(FileLogger):
    """Writes progress.csv in each trial's directory; on by default."""

    _is_stock = True
    kinds = CSV
