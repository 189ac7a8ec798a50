"""Exports TuneBOHB; hpbandster itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.bohb.bohb_search import TuneBOHB

__all__ = ["TuneBOHB"]
