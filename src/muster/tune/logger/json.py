"""Ray's path of the logger that writes result.json, params.json and params.pkl."""

from __future__ import annotations

from muster.tune.logger.files.writer import JsonLoggerCallback

__all__ = ["JsonLoggerCallback"]
