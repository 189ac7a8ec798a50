"""Public scheduler names, each loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
    from muster.tune.schedulers.create import create_scheduler
    from muster.tune.schedulers.fifo import FIFOScheduler
    from muster.tune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler", "FIFOScheduler", "TrialScheduler", "create_scheduler"]

_HOMES = {
    "ASHAScheduler": "asha",
    "AsyncHyperBandScheduler": "asha",
    "FIFOScheduler": "fifo",
    "TrialScheduler": "trial_scheduler",
    "create_scheduler": "create",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
