"""JsonLoggerCallback: result.json, params.json and params.pkl."""

from __future__ import annotations

from muster.tune.logger.files.trial_log import JSON
from muster.tune.logger.logger import FileLogger


class JsonLoggerCallback(FileLogger):
    """Writes result.json, params.json and params.pkl in each trial's directory; on by default."""

    _is_stock = True
    kinds = JSON
