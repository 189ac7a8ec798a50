"""Join `muster.train` and the trainers with one worker, which run in the process that calls `fit`."""

from __future__ import annotations

from muster.ray_api.finder import overlay

__getattr__, __dir__ = overlay(
    "ray.train",
    "muster.train",
    {
        "muster.ray_api.train.one_worker": [
            "BackendConfig",
            "ScalingConfig",
            "UserCallback",
            "get_dataset_shard",
        ],
    },
)
