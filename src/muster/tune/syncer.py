"""Provide SyncConfig at Ray's import path."""

from __future__ import annotations

from muster.tune.config import SyncConfig

__all__ = ["SyncConfig"]
