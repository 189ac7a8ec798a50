"""Provide TuneError at Ray's import path."""

from __future__ import annotations

from muster.errors import RestoreError, TuneError

__all__ = ["RestoreError", "TuneError"]
