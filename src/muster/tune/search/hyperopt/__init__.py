"""Export HyperOptSearch; hyperopt itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.hyperopt.hyperopt_search import HyperOptSearch

__all__ = ["HyperOptSearch"]
