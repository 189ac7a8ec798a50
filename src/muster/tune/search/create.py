"""Makes search algorithms by name."""

from __future__ import annotations

import importlib
import inspect
import logging
from functools import partial
from typing import Any

from muster.base.text import did_you_mean
from muster.errors import public

logger = logging.getLogger(__name__)

_HERE = "muster.tune.search"
_BY_NAME = {
    "variant_generator": (f"{_HERE}.basic_variant", "BasicVariantGenerator"),
    "random": (f"{_HERE}.basic_variant", "BasicVariantGenerator"),
    "optuna": (f"{_HERE}.optuna", "OptunaSearch"),
    "ax": (f"{_HERE}.ax", "AxSearch"),
    "bayesopt": (f"{_HERE}.bayesopt", "BayesOptSearch"),
    "bohb": (f"{_HERE}.bohb", "TuneBOHB"),
    "hyperopt": (f"{_HERE}.hyperopt", "HyperOptSearch"),
    "nevergrad": (f"{_HERE}.nevergrad", "NevergradSearch"),
    "zoopt": (f"{_HERE}.zoopt", "ZOOptSearch"),
}


def _class(name: str) -> Any:  # noqa: ANN401
    module, kind = _BY_NAME[name]
    return getattr(importlib.import_module(module), kind)


# `seed` is every searcher's seed, whatever its own name for it.
_SEEDS = {
    "BasicVariantGenerator": "random_state",
    "OptunaSearch": "seed",
    "AxSearch": "random_seed",
    "BayesOptSearch": "random_state",
    "TuneBOHB": "seed",
    "HyperOptSearch": "random_state_seed",
    "ZOOptSearch": "seed",
}


# Ray's table: each value, called, imports and returns the class.
SEARCH_ALG_IMPORT = {name: partial(_class, name) for name in _BY_NAME}


@public
def create_searcher(search_alg: str, **kwargs: Any) -> Any:  # noqa: ANN401 - a Searcher or a SearchAlgorithm
    """Returns the search algorithm of that name.

    A keyword argument that the searcher does not take is left out with a warning, so that a script may change
    the name alone. `seed` is understood for all of them.

    Example:
        >>> create_searcher("random", max_concurrent=2).max_concurrent
        2
    """
    if search_alg.lower() == "hebo":
        from muster.tune.search.hebo import WHY_NOT

        raise ValueError(WHY_NOT)
    if search_alg.lower() not in _BY_NAME:
        near, known = did_you_mean(search_alg.lower(), _BY_NAME), ", ".join(_BY_NAME)
        fix = f"{near} There are {known}" if near else f"choose one of {known}"
        raise ValueError(f"there is no search algorithm '{search_alg}': {fix}")
    cls = _class(search_alg.lower())
    return cls(**_taken(cls, kwargs))


def _taken(cls: Any, kwargs: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    own = _parameters(cls)
    takes_any = len(own) < len(
        inspect.signature(cls).parameters
    )  # others go to its library, which checks them
    taken: dict[str, Any] = {}
    for name, value in kwargs.items():
        seed = _SEEDS.get(cls.__name__) if name == "seed" else None
        if seed is not None:
            taken.setdefault(seed, value)
        elif name in own or (takes_any and not _is_known(name)):
            taken[name] = value
        else:
            fix = did_you_mean(name, own) or f"it takes {', '.join(own)}"
            logger.warning(
                "create_searcher: %s does not take %s, which is left out; %s", cls.__name__, name, fix
            )
    return taken


def _parameters(cls: Any) -> list[str]:  # noqa: ANN401
    every = inspect.signature(cls).parameters.values()
    return [one.name for one in every if one.kind is not inspect.Parameter.VAR_KEYWORD]


def _is_known(name: str) -> bool:
    return name == "seed" or any(name in _parameters(_class(each)) for each in _BY_NAME)
