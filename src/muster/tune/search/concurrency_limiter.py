"""Limits how many trials of a searcher are unfinished at a time."""

from __future__ import annotations

from typing import Any

from muster.trials.plugins import stopped_argument
from muster.tune.search.searcher import Searcher, Wrapper


class ConcurrencyLimiter(Wrapper):
    """Returns None while `max_concurrent` trials of its searcher are unfinished.

    Args:
        searcher: The searcher whose suggestions to limit.
        max_concurrent: How many trials may be unfinished.
        batch: Withhold completions until every unfinished trial has completed, then pass them on together.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent <= 0:
            raise AssertionError(f"max_concurrent must be an integer above 0, not {max_concurrent!r}")
        super().__init__(searcher)
        self.max_concurrent = max_concurrent
        self.batch = batch
        self.live_trials: dict[str, None] = {}  # withheld ones included
        self.cached_results: dict[str, tuple[Any, ...]] = {}  # result, error, stopped
        # A searcher that limits itself knows better than we when a slot is free.
        self._limit_concurrency = not searcher.set_max_concurrency(max_concurrent)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take the limit of another limiter around this one."""
        self.max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if not self._limit_concurrency:
            return self.searcher.suggest(trial_id)
        if trial_id in self.live_trials:
            raise AssertionError(f"trial {trial_id} has its suggestion already")
        if len(self.live_trials) >= self.max_concurrent:
            return None
        suggestion = self.searcher.suggest(trial_id)
        if suggestion is not None and suggestion != Searcher.FINISHED:
            self.live_trials[trial_id] = None
        return suggestion

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False, stopped: bool = False
    ) -> None:
        completion = (result, error, stopped)
        if not self._limit_concurrency:
            self._complete(trial_id, *completion)
        elif trial_id not in self.live_trials:
            return
        elif self.batch:
            self.cached_results[trial_id] = completion
            if len(self.cached_results) == len(self.live_trials):
                withheld, self.cached_results, self.live_trials = self.cached_results, {}, {}
                for cached_id, withheld_completion in withheld.items():
                    self._complete(cached_id, *withheld_completion)
        else:
            del self.live_trials[trial_id]
            self._complete(trial_id, *completion)

    def _complete(
        self, trial_id: str, result: dict[str, Any] | None, error: bool, stopped: bool = False
    ) -> None:
        more = stopped_argument(self.searcher, stopped)
        self.searcher.on_trial_complete(trial_id, result=result, error=error, **more)

    def get_state(self) -> dict[str, Any]:
        """Return what a restored limiter needs."""
        return {
            "max_concurrent": self.max_concurrent,
            "batch": self.batch,
            "live_trials": list(self.live_trials),
            "cached_results": self.cached_results,
            "limit_concurrency": self._limit_concurrency,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        self.max_concurrent, self.batch = state["max_concurrent"], state["batch"]
        self.live_trials = dict.fromkeys(state["live_trials"])
        self.cached_results = dict(state["cached_results"])
        self._limit_concurrency = state["limit_concurrency"]
