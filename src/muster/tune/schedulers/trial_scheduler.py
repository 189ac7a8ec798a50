"""Defines TrialScheduler, the base class of every scheduler, with Ray's hook names, and FIFOScheduler.

The controller calls the hooks with a `ControllerView`; a scheduler never reaches an engine.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from muster.errors import TuneError
from muster.trials import plugins
from muster.trials.metrics import DEFAULT_METRIC, in_words
from muster.trials.model import Trial
from muster.trials.plugins import ITERATION, ControllerView, Milestone
from muster.tune.plugin_state import PluginState, restore_by_path, saved_by_path

__all__ = ["FIFOScheduler", "TrialScheduler", "offer_search_properties"]

logger = logging.getLogger(__name__)


class TrialScheduler(PluginState):
    """A TrialScheduler decides which trial runs next and whether a trial that reported continues.

    Subclasses need not call `__init__`. State is saved by `save_state` (by default all attributes); Ray's
    `save(path)` and `restore(path)` do the same with a file, and are honoured when only they are overridden.
    """

    CONTINUE: ClassVar[str] = plugins.CONTINUE
    PAUSE: ClassVar[str] = plugins.PAUSE
    STOP: ClassVar[str] = plugins.STOP
    NOOP: ClassVar[str] = plugins.NOOP

    _metric: str | None = None
    _supports_buffered_results = True

    @property
    def metric(self) -> str | None:
        return self._metric

    @property
    def supports_buffered_results(self) -> bool:
        return self._supports_buffered_results

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Takes over the experiment's metric; returns False when it was set twice."""
        del mode, spec
        if self._metric and metric:
            return False
        if metric:
            self._metric = metric
        if self._metric is None:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called with a new trial, or one that failed and is tried again."""
        raise NotImplementedError

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called when a trial failed. If it is tried again, `on_trial_add` follows."""
        raise NotImplementedError

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        """Returns CONTINUE, PAUSE, STOP or NOOP, for a flat result."""
        raise NotImplementedError

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Called when a running trial ended well; `result` is its last one."""
        raise NotImplementedError

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called when a pending or paused trial was ended."""
        raise NotImplementedError

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        """Returns the PENDING or PAUSED trial to start next; idempotent, as it is called until that runs."""
        raise NotImplementedError

    def debug_string(self) -> str:
        """Returns one or more lines that describe the scheduler to users."""
        raise NotImplementedError

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(super().save_state() if self._saves_to_files else self.save_state())

    def restore(self, checkpoint_path: str) -> None:
        state = Path(checkpoint_path).read_bytes()
        if self._saves_to_files:
            super().restore_state(state)
        else:
            self.restore_state(state)

    def save_state(self) -> bytes:
        return saved_by_path(self.save) if self._saves_to_files else super().save_state()

    def restore_state(self, state: bytes, trials: Any = None) -> None:  # noqa: ANN401 - see PluginState
        if self._saves_to_files:
            restore_by_path(self.restore, state)
        else:
            super().restore_state(state, trials)

    @property
    def _saves_to_files(self) -> bool:
        """Returns whether a subclass written for Ray has its own file format, for `save_state`."""
        kind = type(self)
        return kind.save is not TrialScheduler.save and kind.restore is not TrialScheduler.restore


def offer_search_properties(
    scheduler: TrialScheduler, metric: str | None, mode: str | None, **spec: object
) -> bool:
    """Calls `set_search_properties`, without `spec` for an override that was written before it existed."""
    offered = inspect.signature(scheduler.set_search_properties).parameters
    if spec and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in offered.values()):
        name = type(scheduler).__name__
        logger.warning("%s.set_search_properties takes no **spec; add it to get %s", name, ", ".join(spec))
        spec = {key: value for key, value in spec.items() if key in offered}
    return scheduler.set_search_properties(metric, mode, **spec)


class FIFOScheduler(TrialScheduler):
    """A FIFOScheduler runs trials in the order in which they began to wait."""

    _state_kind = "fifo"
    _plain_attributes: ClassVar[tuple[str, ...]] = ("_metric",)

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None: ...

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None: ...

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        return self.CONTINUE

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None: ...

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None: ...

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        return first_waiting(tune_controller)

    def milestones(self, trial: Trial) -> Sequence[Milestone] | None:
        """Returns where a trial may be stopped or paused; () when it runs to its end, None: not known."""
        del trial
        return () if type(self) is FIFOScheduler else None

    def rung_levels(self) -> tuple[tuple[float, ...] | None, str]:
        """Returns all times at which trials are compared, () for none, None for unknown; and their key."""
        return () if type(self) is FIFOScheduler else None, ITERATION

    def debug_string(self) -> str:
        return "Using FIFO scheduling algorithm."


def first_waiting(tune_controller: ControllerView) -> Trial | None:
    """Returns the first PENDING trial, else the first PAUSED one, of any controller."""
    if hasattr(tune_controller, "first_waiting"):
        return tune_controller.first_waiting()
    trials = tune_controller.get_trials()
    for status in ("PENDING", "PAUSED"):
        for trial in trials:
            if trial.status == status:
                return trial
    return None


def explain(tune_controller: ControllerView, trial_id: str, decision: str, reason: str) -> None:
    """Records why this hook stops, pauses, promotes or changes a trial, with a controller that takes it."""
    if hasattr(tune_controller, "explain"):
        tune_controller.explain(trial_id, decision, reason)


def check_mode(owner: object, mode: str | None) -> None:
    if mode not in (None, "min", "max"):
        raise ValueError(f"{type(owner).__name__}: mode is {mode!r}; it must be 'min' or 'max'")


def need_goal(owner: object, metric: str | None, mode: str | None) -> str:
    """Returns the metric; ValueError for an `owner` that compares trials and lacks a metric or a mode."""
    if not metric or not mode:
        raise ValueError(
            f"{type(owner).__name__} compares trials and needs a metric (now {metric!r}) and a mode "
            f"(now {mode!r}): pass metric=... and mode='min' or 'max' to it or to TuneConfig"
        )
    return metric


class MetricScheduler(FIFOScheduler):
    """A MetricScheduler knows metric, mode and time; scores are signed so that larger is better."""

    _plain_attributes: ClassVar[tuple[str, ...]] = ("_metric", "_mode")

    def __init__(self, *, time_attr: str, metric: str | None, mode: str | None) -> None:
        check_mode(self, mode)
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Takes over the experiment's metric and mode; returns False when one of them was set twice."""
        del spec
        if (self._metric and metric) or (self._mode and mode):
            return False
        check_mode(self, mode)
        self._metric = metric or self._metric
        self._mode = mode or self._mode
        if self._mode and self._metric is None:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        need_goal(self, self._metric, self._mode)

    def _time_and_score(self, trial: Trial, result: dict[str, Any]) -> tuple[float, float] | None:
        """Returns time and score; None when the result lacks one of them."""
        if self._time_attr not in result or self._metric not in result:
            return None
        time = self._number(trial, self._time_attr, result[self._time_attr])
        value = self._number(trial, self._metric, result[self._metric])
        return time, value if self._mode == "max" else -value

    def _shown(self, score: float) -> str:
        """Returns a score as the value that was reported, with the metric's name."""
        return f"{self._metric} = {in_words(score if self._mode == 'max' else -score)}"

    def _number(self, trial: Trial, key: str, value: Any) -> float:  # noqa: ANN401 - whatever was reported
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TuneError(
                f"{type(self).__name__}: trial {trial.trial_id} reported {key} = {value!r}, which is not a "
                f"number: report a float (NaN for 'unknown'), or leave the key out"
            ) from None
