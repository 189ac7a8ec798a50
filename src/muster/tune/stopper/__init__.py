"""Exports the public stoppers, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.stopper.experiment_plateau import ExperimentPlateauStopper
    from muster.tune.stopper.function_stopper import FunctionStopper
    from muster.tune.stopper.maximum_iteration import MaximumIterationStopper
    from muster.tune.stopper.noop import NoopStopper
    from muster.tune.stopper.stopper import CombinedStopper, Stopper
    from muster.tune.stopper.timeout import TimeoutStopper
    from muster.tune.stopper.trial_plateau import TrialPlateauStopper

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CombinedStopper": ".stopper",
        "ExperimentPlateauStopper": ".experiment_plateau",
        "FunctionStopper": ".function_stopper",
        "MaximumIterationStopper": ".maximum_iteration",
        "NoopStopper": ".noop",
        "Stopper": ".stopper",
        "TimeoutStopper": ".timeout",
        "TrialPlateauStopper": ".trial_plateau",
    },
)
