"""Ray's path of the logger that writes TensorBoard event files."""

from __future__ import annotations

from muster.tune.logger.files.writer import TBXLoggerCallback

__all__ = ["TBXLoggerCallback"]
