"""Ray's import path of TuneConfig and ResumeConfig."""

from __future__ import annotations

from muster.tune.config import ResumeConfig, TuneConfig

__all__ = ["ResumeConfig", "TuneConfig"]
