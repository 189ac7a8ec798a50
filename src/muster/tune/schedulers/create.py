"""Makes schedulers by name, for configuration files and command lines."""

from __future__ import annotations

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

    A keyword argument that the scheduler does not take is left out with a warning, so that a script may
    change the name alone.
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
    if key not in own:
        fix = did_you_mean(key, own) or f"it takes {', '.join(own)}"
        logger.warning(
            "create_scheduler: %s does not take %s, which is left out; %s", kind.__name__, key, fix
        )
    return key in own
