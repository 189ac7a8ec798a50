"""Exports the public schedulers, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
    from muster.tune.schedulers.create import create_scheduler
    from muster.tune.schedulers.hb_bohb import HyperBandForBOHB
    from muster.tune.schedulers.hyperband import HyperBandScheduler
    from muster.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from muster.tune.schedulers.pb2 import PB2
    from muster.tune.schedulers.pbt import PopulationBasedTraining
    from muster.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
    from muster.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler
    from muster.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler

__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "TrialScheduler",
    "create_scheduler",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ASHAScheduler": ".async_hyperband",
        "AsyncHyperBandScheduler": ".async_hyperband",
        "FIFOScheduler": ".trial_scheduler",
        "HyperBandForBOHB": ".hb_bohb",
        "HyperBandScheduler": ".hyperband",
        "MedianStoppingRule": ".median_stopping_rule",
        "PB2": ".pb2",
        "PopulationBasedTraining": ".pbt",
        "PopulationBasedTrainingReplay": ".pbt_replay",
        "ResourceChangingScheduler": ".resource_changing_scheduler",
        "TrialScheduler": ".trial_scheduler",
        "create_scheduler": ".create",
    },
)
