"""Export TuneBOHB; numpy is imported when one gets its space."""

from __future__ import annotations

from muster.tune.search.bohb.bohb_search import TuneBOHB

__all__ = ["TuneBOHB"]
