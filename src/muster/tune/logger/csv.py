"""Logs results to progress.csv."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import CSV
from muster.tune.logger.logger import FileLogger


class CSVLoggerCallback(FileLogger):
    """A CSVLoggerCallback writes progress.csv in each trial's directory; it is on by default."""

    _is_stock = True
    kinds = CSV
