"""Export ZOOptSearch; zoopt itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.zoopt.zoopt_search import ZOOptSearch

__all__ = ["ZOOptSearch"]
