"""Exports search spaces and search algorithms under Ray's names; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.search.basic_variant import BasicVariantGenerator
    from muster.tune.search.concurrency_limiter import ConcurrencyLimiter
    from muster.tune.search.create import create_searcher
    from muster.tune.search.repeater import Repeater
    from muster.tune.search.search_algorithm import SearchAlgorithm
    from muster.tune.search.search_generator import SearchGenerator
    from muster.tune.search.searcher import (
        UNDEFINED_METRIC_MODE,
        UNDEFINED_SEARCH_SPACE,
        UNRESOLVED_SEARCH_SPACE,
        Searcher,
    )
    from muster.tune.search.space import grid_search

__all__ = [
    "UNDEFINED_METRIC_MODE",
    "UNDEFINED_SEARCH_SPACE",
    "UNRESOLVED_SEARCH_SPACE",
    "BasicVariantGenerator",
    "ConcurrencyLimiter",
    "Repeater",
    "SearchAlgorithm",
    "SearchGenerator",
    "Searcher",
    "create_searcher",
    "grid_search",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BasicVariantGenerator": ".basic_variant",
        "ConcurrencyLimiter": ".concurrency_limiter",
        "Repeater": ".repeater",
        "SearchAlgorithm": ".search_algorithm",
        "SearchGenerator": ".search_generator",
        "create_searcher": ".create",
        "grid_search": ".space",
        "Searcher": ".searcher",
        "UNDEFINED_METRIC_MODE": ".searcher",
        "UNDEFINED_SEARCH_SPACE": ".searcher",
        "UNRESOLVED_SEARCH_SPACE": ".searcher",
    },
)
