"""Ray's path of the logger that writes progress.csv."""

from __future__ import annotations

from muster.tune.logger.files.writer import CSVLoggerCallback

__all__ = ["CSVLoggerCallback"]
