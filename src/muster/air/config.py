"""Export the configs of a run at Ray's older import path."""

from __future__ import annotations

from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig"]
