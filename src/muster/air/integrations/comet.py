"""Export what logs to Comet at Ray's other import path."""

from __future__ import annotations

from muster.tune.logger.comet import CometLoggerCallback

__all__ = ["CometLoggerCallback"]
