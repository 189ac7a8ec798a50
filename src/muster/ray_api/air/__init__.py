"""Join `muster.air` and the names of `ray.air` that only libraries with trainers use."""

from __future__ import annotations

from muster.ray_api.finder import overlay

__getattr__, __dir__ = overlay(
    "ray.air", "muster.air", {"muster.ray_api.train.one_worker": ["ScalingConfig"]}
)
