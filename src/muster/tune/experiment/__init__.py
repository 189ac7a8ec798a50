"""Loads Experiment and Trial when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.experiment.experiment import Experiment

__all__ = ["Experiment", "Trial"]

__getattr__, __dir__ = lazy_names(__name__, {"Experiment": ".experiment", "Trial": "muster.trials.model"})
