"""Ray's name for the module of TBXLoggerCallback."""

from __future__ import annotations

from muster.tune.logger.tensorboard import TBXLoggerCallback

__all__ = ["TBXLoggerCallback"]
