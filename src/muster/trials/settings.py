"""What one experiment was asked to do, as plain data the core can be restored with."""

from __future__ import annotations

from msgspec import Struct

from muster.trials.model import FailurePolicy


class Settings(Struct, frozen=True, kw_only=True):
    """Resolved from TuneConfig and RunConfig; everything here survives a restart as it is."""

    name: str
    experiment_dir: str = ""
    metric: str | None = None
    mode: str | None = None
    failure: FailurePolicy = FailurePolicy()
    reuse_actors: bool = False
    max_pending: int = 200  # trials asked from the searcher ahead of the resources to run them
    strict_metrics: bool = True
    result_buffer_length: int = 1  # results that a trial may send together; decisions on them come late
    result_buffer_age_s: float = 100.0
    trial_time_limit_s: float | None = None
    stop_grace_s: float = 10.0
