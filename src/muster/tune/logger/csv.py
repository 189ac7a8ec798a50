"""CSVLoggerCallback: progress.csv."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import CSV
from muster.tune.logger.logger import FileLogger


class CSVLoggerCallback(FileLogger):
    """Writes progress.csv in each trial's directory; on by default."""

    _is_stock = True
    kinds = CSV
