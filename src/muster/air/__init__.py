"""Exports, as `ray.air` does, the configs of a run and the trackers (`integrations`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig
    from muster.tune.result import Result

__all__ = ["CheckpointConfig", "FailureConfig", "Result", "RunConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CheckpointConfig": "muster.tune.config",
        "FailureConfig": "muster.tune.config",
        "Result": "muster.tune.result",
        "RunConfig": "muster.tune.config",
    },
)
