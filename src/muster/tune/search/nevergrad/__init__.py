"""Export NevergradSearch; nevergrad itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.nevergrad.nevergrad_search import NevergradSearch

__all__ = ["NevergradSearch"]
