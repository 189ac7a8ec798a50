"""Questions about a finished or running experiment; loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.analysis.experiment_analysis import ExperimentAnalysis as ExperimentAnalysis
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, {".experiment_analysis": ["ExperimentAnalysis"]})
