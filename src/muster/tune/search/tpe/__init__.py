"""The tree-structured Parzen estimator of muster, which needs nothing beyond numpy."""

from muster.tune.search.tpe.tpe_search import TPESearch

__all__ = ["TPESearch"]
