"""create_searcher: search algorithms by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

_BY_NAME = {
    "variant_generator": ("muster.tune.search.basic_variant", "BasicVariantGenerator"),
    "random": ("muster.tune.search.basic_variant", "BasicVariantGenerator"),
    "optuna": ("muster.tune.search.optuna", "OptunaSearch"),
}


def create_searcher(search_alg: str, **kwargs: Any) -> Any:  # noqa: ANN401 - a Searcher or a SearchAlgorithm
    """The search algorithm of that name; keyword arguments it does not know are dropped.

    Example:
        >>> create_searcher("random", max_concurrent=2, unknown=1).max_concurrent
        2
    """
    found = _BY_NAME.get(search_alg.lower())
    if found is None:
        raise ValueError(f"there is no search algorithm '{search_alg}': choose one of {', '.join(_BY_NAME)}")
    cls = getattr(importlib.import_module(found[0]), found[1])
    known = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in kwargs.items() if name in known})
