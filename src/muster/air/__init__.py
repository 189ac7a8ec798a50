"""Export, as `ray.air` does, the configs of a run and the trackers (`integrations`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint as Checkpoint
    from muster.tune.config import CheckpointConfig as CheckpointConfig
    from muster.tune.config import FailureConfig as FailureConfig
    from muster.tune.config import RunConfig as RunConfig
    from muster.tune.result import Result as Result
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "muster.session.checkpoint": ["Checkpoint"],  # until Ray 2.6
            "muster.tune.config": ["CheckpointConfig", "FailureConfig", "RunConfig"],
            "muster.tune.result": ["Result"],
        },
    )
