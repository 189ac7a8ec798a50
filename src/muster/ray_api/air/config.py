"""Imported lazily, as `ray.air.config`: join `muster.air.config` and ScalingConfig."""

from __future__ import annotations

from muster.air.config import CheckpointConfig, FailureConfig, RunConfig
from muster.ray_api.train.one_worker import ScalingConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]
