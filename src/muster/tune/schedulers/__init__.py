"""Public scheduler names, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
    from muster.tune.schedulers.create import create_scheduler
    from muster.tune.schedulers.fifo import FIFOScheduler
    from muster.tune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler", "FIFOScheduler", "TrialScheduler", "create_scheduler"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ASHAScheduler": ".asha",
        "AsyncHyperBandScheduler": ".asha",
        "FIFOScheduler": ".fifo",
        "TrialScheduler": ".trial_scheduler",
        "create_scheduler": ".create",
    },
)
