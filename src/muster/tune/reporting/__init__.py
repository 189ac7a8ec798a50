"""Show users the progress of an experiment. The tuner calls `reporter_for`; nothing here makes decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.tune.reporting.reporter import Reporter as Reporter
    from muster.tune.reporting.reporter import RunInfo as RunInfo
    from muster.tune.reporting.reporter import reporter_for as reporter_for
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {".reporter": ["Reporter", "RunInfo", "reporter_for"]}
    )
