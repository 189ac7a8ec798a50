"""Export OptunaSearch; optuna itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.optuna.optuna_search import OptunaSearch

__all__ = ["OptunaSearch"]
