"""Export AxSearch; ax-platform itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.ax.ax_search import AxSearch

__all__ = ["AxSearch"]
