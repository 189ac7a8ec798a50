"""Logs results to result.json, and configs to params.json and params.pkl."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import JSON
from muster.tune.logger.logger import FileLogger


class JsonLoggerCallback(FileLogger):
    """A JsonLoggerCallback writes result.json, params.json and params.pkl per trial; it is on by default."""

    _is_stock = True
    kinds = JSON
