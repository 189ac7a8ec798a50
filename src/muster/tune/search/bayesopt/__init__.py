"""Export BayesOptSearch; bayesian-optimization itself is imported when the first one is made."""

from __future__ import annotations

from muster.tune.search.bayesopt.bayesopt_search import BayesOptSearch

__all__ = ["BayesOptSearch"]
