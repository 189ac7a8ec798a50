"""Ray's older import path of the configs of a run."""

from __future__ import annotations

from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig"]
