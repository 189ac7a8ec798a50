"""Shows users the progress of an experiment. The tuner calls `reporter_for`; nothing here makes decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.reporting.reporter import Reporter, RunInfo, reporter_for

__all__ = ["Reporter", "RunInfo", "reporter_for"]

__getattr__, __dir__ = lazy_names(
    __name__, {"Reporter": ".reporter", "RunInfo": ".reporter", "reporter_for": ".reporter"}
)
