"""Ray's older import path of Result."""

from __future__ import annotations

from muster.tune.result import Result

__all__ = ["Result"]
