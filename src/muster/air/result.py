"""Export Result at Ray's older import path."""

from __future__ import annotations

from muster.tune.result import Result

__all__ = ["Result"]
