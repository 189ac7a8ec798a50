"""Export search spaces and search algorithms under Ray's names; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
    from muster.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
    from muster.tune.search.create import SEARCH_ALG_IMPORT as SEARCH_ALG_IMPORT
    from muster.tune.search.create import create_searcher as create_searcher
    from muster.tune.search.repeater import Repeater as Repeater
    from muster.tune.search.search_algorithm import SearchAlgorithm as SearchAlgorithm
    from muster.tune.search.search_generator import SearchGenerator as SearchGenerator
    from muster.tune.search.searcher import UNDEFINED_METRIC_MODE as UNDEFINED_METRIC_MODE
    from muster.tune.search.searcher import UNDEFINED_SEARCH_SPACE as UNDEFINED_SEARCH_SPACE
    from muster.tune.search.searcher import UNRESOLVED_SEARCH_SPACE as UNRESOLVED_SEARCH_SPACE
    from muster.tune.search.searcher import Searcher as Searcher
    from muster.tune.search.space import grid_search as grid_search
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".basic_variant": ["BasicVariantGenerator"],
            ".concurrency_limiter": ["ConcurrencyLimiter"],
            ".create": ["SEARCH_ALG_IMPORT", "create_searcher"],
            ".repeater": ["Repeater"],
            ".search_algorithm": ["SearchAlgorithm"],
            ".search_generator": ["SearchGenerator"],
            ".searcher": [
                "Searcher",
                "UNDEFINED_METRIC_MODE",
                "UNDEFINED_SEARCH_SPACE",
                "UNRESOLVED_SEARCH_SPACE",
            ],
            ".space": ["grid_search"],
        },
    )
