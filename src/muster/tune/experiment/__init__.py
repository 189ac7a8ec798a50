"""Load Experiment and Trial when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.trials.model import Trial as Trial
    from muster.tune.experiment.experiment import Experiment as Experiment
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {"muster.trials.model": ["Trial"], ".experiment": ["Experiment"]}
    )
