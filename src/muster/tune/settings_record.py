"""What an experiment was started with, as plain data in its store: for `muster tune` and other readers, which
must not unpickle anything. Written by `launch`; a restore goes by tuner.pkl and does not look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.tune.config import TuneConfig, seconds

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState


def settings_record(trainable_name: str, tune: TuneConfig, state: ExperimentState) -> dict[str, Any]:
    """Names and numbers only. Several metrics stay a list."""
    search: Any = state.search
    return {
        "trainable_name": trainable_name,
        "metric": _plain(tune.metric) or state.settings.metric,
        "mode": _plain(tune.mode) or state.settings.mode,
        "search_alg": type(getattr(search, "searcher", search)).__name__,
        "scheduler": type(state.scheduler).__name__,
        "num_samples": tune.num_samples,
        "max_concurrent_trials": tune.max_concurrent_trials,
        "time_budget_s": seconds(tune.time_budget_s, "TuneConfig(time_budget_s=...)"),
    }


def _plain(value: object) -> str | list[str] | None:
    if value is None or isinstance(value, str):
        return value
    return [str(each) for each in value] if isinstance(value, list | tuple) else str(value)
