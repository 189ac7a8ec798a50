"""Make search algorithms and schedulers by name, for configuration files and command lines."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from muster.base.text import did_you_mean
from muster.errors import public

logger = logging.getLogger(__name__)


class PluginTable(NamedTuple):
    """Has the places of all plug-ins of a kind: module and class, by name."""

    kind: str
    package: str
    places: Mapping[str, tuple[str, str]]
    seeds: Mapping[str, str] = {}  # the name of each class for `seed`

    def load(self, name: str) -> Any:  # noqa: ANN401 - a class
        module, class_name = self.places[name]
        return getattr(import_module(f"{self.package}.{module}"), class_name)

    def create(self, name: str, given: str, kwargs: Mapping[str, Any], *, strict: bool = False) -> Any:  # noqa: ANN401
        """Return the plug-in `name`, which the user wrote as `given`.

        Keyword arguments that it does not take are left out with a warning; `strict` refuses them.
        """
        if name not in self.places:
            near, known = did_you_mean(name, self.places), ", ".join(self.places)
            raise ValueError(f"there is no {self.kind} {given!r}{near and f' ({near})'}; use one of: {known}")
        cls = self.load(name)
        own = _parameters(cls)
        passes_on = len(own) < len(inspect.signature(cls).parameters)  # to its library, which checks the rest
        taken: dict[str, Any] = {}
        for key, value in kwargs.items():
            seed = self.seeds.get(cls.__name__) if key == "seed" else None
            if seed is not None:
                taken.setdefault(seed, value)
            elif key in own or (passes_on and not self._is_of_another(key)):
                taken[key] = value
            else:
                fix = did_you_mean(key, own) or f"it takes {', '.join(own)}"
                if strict:
                    raise ValueError(f"{given} does not take {key}; {fix}")
                logger.warning("%s does not take %s, which is left out; %s", cls.__name__, key, fix)
        return cls(**taken)

    def _is_of_another(self, key: str) -> bool:
        return key == "seed" or any(key in _parameters(self.load(name)) for name in self.places)


def _parameters(cls: Any) -> list[str]:  # noqa: ANN401
    every = inspect.signature(cls).parameters.values()
    return [one.name for one in every if one.kind is not inspect.Parameter.VAR_KEYWORD]


SEARCHERS = PluginTable(
    "search algorithm",
    "muster.tune.search",
    {
        "variant_generator": ("basic_variant", "BasicVariantGenerator"),
        "random": ("basic_variant", "BasicVariantGenerator"),
        "auto": ("tpe", "TPESearch"),
        "tpe": ("tpe", "TPESearch"),
        "optuna": ("optuna", "OptunaSearch"),
        "ax": ("ax", "AxSearch"),
        "bayesopt": ("bayesopt", "BayesOptSearch"),
        "bohb": ("bohb", "TuneBOHB"),
        "hyperopt": ("hyperopt", "HyperOptSearch"),
        "nevergrad": ("nevergrad", "NevergradSearch"),
        "zoopt": ("zoopt", "ZOOptSearch"),
    },
    {
        "BasicVariantGenerator": "random_state",
        "TPESearch": "seed",
        "OptunaSearch": "seed",
        "AxSearch": "random_seed",
        "BayesOptSearch": "random_state",
        "TuneBOHB": "seed",
        "HyperOptSearch": "random_state_seed",
        "ZOOptSearch": "seed",
    },
)
SCHEDULERS = PluginTable(
    "scheduler",
    "muster.tune.schedulers",
    {
        "fifo": ("trial_scheduler", "FIFOScheduler"),
        "asha": ("async_hyperband", "AsyncHyperBandScheduler"),  # as everybody calls it
        "async_hyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
        "asynchyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
        "median_stopping_rule": ("median_stopping_rule", "MedianStoppingRule"),
        "medianstopping": ("median_stopping_rule", "MedianStoppingRule"),
        "hyperband": ("hyperband", "HyperBandScheduler"),
        "hb_bohb": ("hb_bohb", "HyperBandForBOHB"),
        "pbt": ("pbt", "PopulationBasedTraining"),
        "pbt_replay": ("pbt_policy", "PopulationBasedTrainingReplay"),
        "pb2": ("pb2", "PB2"),
        "resource_changing": ("resource_changing_scheduler", "ResourceChangingScheduler"),
    },
)

# Ray's table: each value, called, imports and returns the class.
SEARCH_ALG_IMPORT = {name: partial(SEARCHERS.load, name) for name in SEARCHERS.places}


def __getattr__(name: str) -> dict[str, type]:
    """Return Ray's table of scheduler classes by name; a fit does not need it, so it is made on request."""
    if name != "SCHEDULER_IMPORT":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return {each: SCHEDULERS.load(each) for each in SCHEDULERS.places if each != "asha"}  # Ray has no such


@public
def create_searcher(search_alg: str, **kwargs: Any) -> Any:  # noqa: ANN401 - a Searcher or a SearchAlgorithm
    """Return the search algorithm of that name.

    A keyword argument that the searcher does not take is left out with a warning, so that a script may change
    the name alone. `seed` is understood for all of them.

    Example:
        >>> create_searcher("random", max_concurrent=2).max_concurrent
        2
    """
    if search_alg.lower() == "hebo":
        from muster.tune.search.hebo import WHY_NOT

        raise ValueError(WHY_NOT)
    return SEARCHERS.create(search_alg.lower(), search_alg, kwargs)


@public
def create_scheduler(scheduler: str, **kwargs: Any) -> Any:  # noqa: ANN401 - a TrialScheduler
    """Return a scheduler by its name, in any case.

    A keyword argument that the scheduler does not take is left out with a warning, so that a script may
    change the name alone.
    """
    return SCHEDULERS.create(scheduler.lower().removesuffix("scheduler"), scheduler, kwargs)
