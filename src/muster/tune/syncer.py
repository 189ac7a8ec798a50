"""Ray's import path of SyncConfig."""

from __future__ import annotations

from muster.tune.config import SyncConfig

__all__ = ["SyncConfig"]
