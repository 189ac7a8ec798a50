"""Export the public schedulers, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
    from muster.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
    from muster.tune.schedulers.hb_bohb import HyperBandForBOHB as HyperBandForBOHB
    from muster.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
    from muster.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStoppingRule
    from muster.tune.schedulers.pb2 import PB2 as PB2
    from muster.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
    from muster.tune.schedulers.pbt_policy import (
        PopulationBasedTrainingReplay as PopulationBasedTrainingReplay,
    )
    from muster.tune.schedulers.resource_changing_scheduler import (
        ResourceChangingScheduler as ResourceChangingScheduler,
    )
    from muster.tune.schedulers.trial_scheduler import FIFOScheduler as FIFOScheduler
    from muster.tune.schedulers.trial_scheduler import TrialScheduler as TrialScheduler
    from muster.tune.search.create import SCHEDULER_IMPORT as SCHEDULER_IMPORT
    from muster.tune.search.create import create_scheduler as create_scheduler
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".async_hyperband": ["ASHAScheduler", "AsyncHyperBandScheduler"],
            ".hb_bohb": ["HyperBandForBOHB"],
            ".hyperband": ["HyperBandScheduler"],
            ".median_stopping_rule": ["MedianStoppingRule"],
            ".pb2": ["PB2"],
            ".pbt": ["PopulationBasedTraining"],
            ".pbt_policy": ["PopulationBasedTrainingReplay"],
            ".resource_changing_scheduler": ["ResourceChangingScheduler"],
            ".trial_scheduler": ["FIFOScheduler", "TrialScheduler"],
            "muster.tune.search.create": ["SCHEDULER_IMPORT", "create_scheduler"],
        },
    )
