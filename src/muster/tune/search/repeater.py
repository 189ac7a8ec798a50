"""Try every suggestion several times, and report the mean to the searcher."""

from __future__ import annotations

import logging
import math
from typing import Any

from muster.tune.search.search_algorithm import Names
from muster.tune.search.searcher import Searcher, Wrapper

logger = logging.getLogger(__name__)

TRIAL_INDEX = "__trial_index__"
"""The key of a config that holds which repetition a trial is, from 0."""


class _Group:
    """Holds the trials of one suggestion. The searcher knows them by the id of the first."""

    def __init__(self, first: str, config: dict[str, Any], size: int) -> None:
        self.first, self.config, self.size = first, config, size
        self.results: dict[str, dict[str, Any] | None] = {}  # by trial; None while it runs
        self.completed = 0

    def is_full(self) -> bool:
        return len(self.results) == self.size


class Repeater(Wrapper):
    """Repeats suggestions to average out noise. `num_samples` counts every repetition.

    Args:
        searcher: The searcher whose suggestions to repeat.
        repeat: How often.
        set_index: Put the number of the repetition into the config, under TRIAL_INDEX.
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        super().__init__(searcher)
        if not isinstance(repeat, int) or repeat < 1:
            raise ValueError(f"Repeater(repeat={repeat!r}): must be a whole number of at least 1")
        self.repeat = repeat
        self._set_index = set_index
        self._filling: _Group | None = None
        self._group_of: dict[str, _Group] = {}

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        num_samples = spec.get("num_samples")
        if isinstance(num_samples, int) and num_samples % self.repeat:
            logger.warning(
                "Repeater: num_samples=%s is not a multiple of repeat=%s; it counts every repetition, "
                "so the searcher will not receive the last %s trials",
                num_samples,
                self.repeat,
                num_samples % self.repeat,
            )
        return super().set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._filling is None:
            config = self.searcher.suggest(trial_id)
            if config is None or config == Searcher.FINISHED:
                return config
            if not isinstance(config, dict):
                return config  # SearchGenerator raises the error
            self._filling = _Group(trial_id, config, self.repeat)
        group = self._filling
        index = len(group.results)
        group.results[trial_id] = None
        self._group_of[trial_id] = group
        if group.is_full():
            self._filling = None
        return {**group.config, TRIAL_INDEX: index} if self._set_index else dict(group.config)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing: intermediate results of repetitions have no common meaning."""

    def on_trial_complete(
        self,
        trial_id: str,
        result: dict[str, Any] | None = None,
        error: bool = False,
        **kwargs: object,  # what Ray's callers add
    ) -> None:
        group = self._group_of.pop(trial_id, None)
        if group is None:
            logger.error("Repeater: trial %s is not one of its unfinished ones", trial_id)
            return
        group.results[trial_id] = result or {}
        group.completed += 1
        if group.completed == group.size:
            scores = [scores for scores in group.results.values() if scores is not None]
            metrics = self.metric if isinstance(self.metric, (list, tuple)) else [self.metric]
            means: dict[str, Any] = {}
            for metric in metrics:
                known = [score[metric] for score in scores if not math.isnan(score.get(metric, math.nan))]
                means[metric] = sum(known) / len(known) if known else math.nan
            self.searcher.on_trial_complete(group.first, result=means, error=error)

    def get_state(self) -> dict[str, Any]:
        """Return the groups that are not complete, and the settings, which a new Repeater takes over."""
        own = {"repeat": self.repeat, "set_index": self._set_index}
        return {"filling": self._filling, "group_of": self._group_of, **own}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        self._filling, self._group_of = state["filling"], state["group_of"]
        self.repeat = state.get("repeat", self.repeat)  # states of older versions lack them
        self._set_index = state.get("set_index", self._set_index)
