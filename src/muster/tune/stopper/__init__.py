"""Public stopper names, each loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.tune.stopper.combined import CombinedStopper
    from muster.tune.stopper.experiment_plateau import ExperimentPlateauStopper
    from muster.tune.stopper.function_stopper import FunctionStopper
    from muster.tune.stopper.maximum_iteration import MaximumIterationStopper
    from muster.tune.stopper.noop import NoopStopper
    from muster.tune.stopper.stopper import Stopper
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

_HOMES = {
    "CombinedStopper": "combined",
    "ExperimentPlateauStopper": "experiment_plateau",
    "FunctionStopper": "function_stopper",
    "MaximumIterationStopper": "maximum_iteration",
    "NoopStopper": "noop",
    "Stopper": "stopper",
    "TimeoutStopper": "timeout",
    "TrialPlateauStopper": "trial_plateau",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
