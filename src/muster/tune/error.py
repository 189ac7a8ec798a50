"""Ray's import path of TuneError."""

from __future__ import annotations

from muster.errors import RestoreError, TuneError

__all__ = ["RestoreError", "TuneError"]
