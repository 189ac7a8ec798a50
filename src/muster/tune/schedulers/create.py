"""create_scheduler: schedulers by name, for configuration files and command lines."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from typing import Any

from muster.tune.schedulers.trial_scheduler import TrialScheduler

logger = logging.getLogger(__name__)

_SCHEDULERS = {
    "fifo": ("fifo", "FIFOScheduler"),
    "async_hyperband": ("asha", "AsyncHyperBandScheduler"),
    "asynchyperband": ("asha", "AsyncHyperBandScheduler"),
    "median_stopping_rule": ("median_stopping_rule", "MedianStoppingRule"),
    "medianstopping": ("median_stopping_rule", "MedianStoppingRule"),
    "hyperband": ("hyperband", "HyperBandScheduler"),
    "hb_bohb": ("hb_bohb", "HyperBandForBOHB"),
    "pbt": ("pbt", "PopulationBasedTraining"),
    "pbt_replay": ("pbt_replay", "PopulationBasedTrainingReplay"),
    "pb2": ("pb2", "PB2"),
    "resource_changing": ("resource_changing_scheduler", "ResourceChangingScheduler"),
}


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:  # noqa: ANN401 - the scheduler's own
    """A scheduler by its name in any case; as in Ray, arguments that it does not take are left out."""
    name = scheduler.lower()
    if name not in _SCHEDULERS:
        raise ValueError(
            f"create_scheduler: there is no scheduler {scheduler!r}; use one of: {', '.join(_SCHEDULERS)}"
        )
    module, class_name = _SCHEDULERS[name]
    kind: type[TrialScheduler] = getattr(import_module(f"muster.tune.schedulers.{module}"), class_name)
    taken = inspect.signature(kind).parameters
    dropped = [key for key in kwargs if key not in taken]
    if dropped:
        logger.warning("create_scheduler: %s does not take %s; left out", class_name, ", ".join(dropped))
    return kind(**{key: value for key, value in kwargs.items() if key in taken})
