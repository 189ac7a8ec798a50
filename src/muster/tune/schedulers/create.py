"""Makes schedulers by name, for configuration files and command lines."""

from __future__ import annotations

import difflib
import inspect
import logging
from importlib import import_module
from typing import Any

from muster.base.text import did_you_mean
from muster.errors import public
from muster.tune.schedulers.trial_scheduler import TrialScheduler

logger = logging.getLogger(__name__)

_SCHEDULERS = {
    "fifo": ("trial_scheduler", "FIFOScheduler"),
    "async_hyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
    "asynchyperband": ("async_hyperband", "AsyncHyperBandScheduler"),
    "median_stopping_rule": ("median_stopping_rule", "MedianStoppingRule"),
    "medianstopping": ("median_stopping_rule", "MedianStoppingRule"),
    "hyperband": ("hyperband", "HyperBandScheduler"),
    "hb_bohb": ("hb_bohb", "HyperBandForBOHB"),
    "pbt": ("pbt", "PopulationBasedTraining"),
    "pbt_replay": ("pbt_replay", "PopulationBasedTrainingReplay"),
    "pb2": ("pb2", "PB2"),
    "resource_changing": ("resource_changing_scheduler", "ResourceChangingScheduler"),
}
_SHORT = {"asha": "async_hyperband"}  # as everybody calls it


@public
def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:  # noqa: ANN401 - the scheduler's own
    """Returns a scheduler by its name, in any case.

    A keyword argument that only other schedulers take is left out with a warning, so that a script may change
    the name alone; one that none takes is a ValueError.
    """
    kind = _class(_known(scheduler))
    return kind(**{key: value for key, value in kwargs.items() if _is_taken(kind, key)})


def _known(name: str) -> str:
    word = name.lower().removesuffix("scheduler")
    if (found := _SHORT.get(word, word)) in _SCHEDULERS:
        return found
    near = did_you_mean(word, [*_SCHEDULERS, *_SHORT])
    known = ", ".join(_SCHEDULERS)
    raise ValueError(
        f"create_scheduler: there is no scheduler {name!r}{near and f' ({near})'}; use one of: {known}"
    )


def _class(name: str) -> type[TrialScheduler]:
    module, class_name = _SCHEDULERS[name]
    kind: type[TrialScheduler] = getattr(import_module(f"muster.tune.schedulers.{module}"), class_name)
    return kind


def __getattr__(name: str) -> dict[str, type[TrialScheduler]]:
    """Returns Ray's table of scheduler classes by name; a fit does not need it, so it is made on request."""
    if name != "SCHEDULER_IMPORT":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return {each: _class(each) for each in _SCHEDULERS}


def _is_taken(kind: type[TrialScheduler], key: str) -> bool:
    own = list(inspect.signature(kind).parameters)
    if key in own:
        return True
    if any(key in inspect.signature(_class(name)).parameters for name in _SCHEDULERS):
        logger.warning(
            "create_scheduler: %s does not take %s, other schedulers do; left out", kind.__name__, key
        )
        return False
    near = difflib.get_close_matches(key, own, n=1)
    fix = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(own)}"
    raise ValueError(f"create_scheduler: {kind.__name__} has no parameter {key!r}; {fix}")
