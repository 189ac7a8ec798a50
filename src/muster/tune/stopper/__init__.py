"""Export the public stoppers, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.stopper.experiment_plateau import ExperimentPlateauStopper as ExperimentPlateauStopper
    from muster.tune.stopper.function_stopper import FunctionStopper as FunctionStopper
    from muster.tune.stopper.maximum_iteration import MaximumIterationStopper as MaximumIterationStopper
    from muster.tune.stopper.noop import NoopStopper as NoopStopper
    from muster.tune.stopper.stopper import CombinedStopper as CombinedStopper
    from muster.tune.stopper.stopper import Stopper as Stopper
    from muster.tune.stopper.timeout import TimeoutStopper as TimeoutStopper
    from muster.tune.stopper.trial_plateau import TrialPlateauStopper as TrialPlateauStopper
else:
    from muster.tune.older_modules import with_older_names

    _load, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".experiment_plateau": ["ExperimentPlateauStopper"],
            ".function_stopper": ["FunctionStopper"],
            ".maximum_iteration": ["MaximumIterationStopper"],
            ".noop": ["NoopStopper"],
            ".stopper": ["CombinedStopper", "Stopper"],
            ".timeout": ["TimeoutStopper"],
            ".trial_plateau": ["TrialPlateauStopper"],
        },
    )
    __getattr__ = with_older_names(_load, "stopper.")
