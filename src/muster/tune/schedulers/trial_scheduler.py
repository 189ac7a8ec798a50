"""Define TrialScheduler, the base class of every scheduler, with Ray's hook names, and FIFOScheduler.

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
from muster.tune.pareto import LEAST_BOUND, violations
from muster.tune.plugin_state import PluginState, restore_by_path, saved_by_path

__all__ = ["FIFOScheduler", "TrialScheduler", "offer_search_properties"]

logger = logging.getLogger(__name__)


class TrialScheduler(PluginState):
    """Decides which trial runs next and whether a trial that reported continues.

    Subclasses need not call `__init__`. State is saved by `save_state` (by default all attributes); Ray's
    `save(path)` and `restore(path)` do the same with a file, and are honoured when only they are overridden.
    """

    CONTINUE: ClassVar[str] = plugins.CONTINUE
    PAUSE: ClassVar[str] = plugins.PAUSE
    STOP: ClassVar[str] = plugins.STOP
    NOOP: ClassVar[str] = plugins.NOOP

    _metric: Any = None  # a name, or a list of several
    _supports_buffered_results = True

    @property
    def metric(self) -> Any:  # noqa: ANN401
        """The metric that decides."""
        return self._metric

    @property
    def supports_buffered_results(self) -> bool:
        """Whether several results may arrive together."""
        return self._supports_buffered_results

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Take over the experiment's metric; return False when it was set twice.

        Args:
            metric: The metric to compare; by default the experiment's.
            mode: "min" or "max"; by default the experiment's.
            spec: Further settings.
        """
        del mode, spec
        if self._metric and metric:
            return False
        if metric:
            self._metric = metric
        if self._metric is None:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called with a new trial, or one that failed and is tried again.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
        """
        raise NotImplementedError

    def on_trial_error(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called when a trial failed. If it is tried again, `on_trial_add` follows.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
        """
        raise NotImplementedError

    def on_trial_result(self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]) -> str:
        """Return CONTINUE, PAUSE, STOP or NOOP, for a flat result.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
            result: The result.
        """
        raise NotImplementedError

    def on_trial_complete(
        self, tune_controller: ControllerView, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Called when a running trial ended well; `result` is its last one.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
            result: The last result.
        """
        raise NotImplementedError

    def on_trial_remove(self, tune_controller: ControllerView, trial: Trial) -> None:
        """Called when a pending or paused trial was ended.

        Args:
            tune_controller: The running experiment, with `get_trials()` and `stop_trial()`.
            trial: The trial.
        """
        raise NotImplementedError

    def choose_trial_to_run(self, tune_controller: ControllerView) -> Trial | None:
        """Return the PENDING or PAUSED trial to start next; idempotent, as it is called until that runs."""
        raise NotImplementedError

    def debug_string(self) -> str:
        """Return one or more lines that describe the scheduler to users."""
        raise NotImplementedError

    def save(self, checkpoint_path: str) -> None:
        """Write the state to a file."""
        Path(checkpoint_path).write_bytes(super().save_state() if self._saves_to_files else self.save_state())

    def restore(self, checkpoint_path: str) -> None:
        """Load the state from a file."""
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
        """Return whether a subclass written for Ray has its own file format, for `save_state`."""
        kind = type(self)
        return kind.save is not TrialScheduler.save and kind.restore is not TrialScheduler.restore


def offer_search_properties(
    scheduler: TrialScheduler, metric: str | None, mode: str | None, **spec: object
) -> bool:
    """Call `set_search_properties`, without `spec` for an override that was written before it existed."""
    offered = inspect.signature(scheduler.set_search_properties).parameters
    if spec and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in offered.values()):
        name = type(scheduler).__name__
        logger.warning("%s.set_search_properties takes no **spec; add it to get %s", name, ", ".join(spec))
        spec = {key: value for key, value in spec.items() if key in offered}
    return scheduler.set_search_properties(metric, mode, **spec)


class FIFOScheduler(TrialScheduler):
    """Runs trials in the order in which they began to wait."""

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
        """Return where a trial may be stopped or paused; () when it runs to its end, None: not known."""
        del trial
        return () if type(self) is FIFOScheduler else None

    def rung_levels(self) -> tuple[tuple[float, ...] | None, str]:
        """Return all times at which trials are compared, () for none, None for unknown; and their key."""
        return () if type(self) is FIFOScheduler else None, ITERATION

    def debug_string(self) -> str:
        return "Using FIFO scheduling algorithm."


def first_waiting(tune_controller: ControllerView) -> Trial | None:
    """Return the first PENDING trial, else the first PAUSED one, of any controller."""
    if hasattr(tune_controller, "first_waiting"):
        return tune_controller.first_waiting()
    trials = tune_controller.get_trials()
    for status in ("PENDING", "PAUSED"):
        for trial in trials:
            if trial.status == status:
                return trial
    return None


def explain(tune_controller: ControllerView, trial_id: str, decision: str, reason: str) -> None:
    """Record why this hook stops, pauses, promotes or changes a trial, with a controller that takes it."""
    if hasattr(tune_controller, "explain"):
        tune_controller.explain(trial_id, decision, reason)


def check_mode(owner: object, mode: str | None) -> None:
    if mode not in (None, "min", "max"):
        raise ValueError(f"{type(owner).__name__}: mode is {mode!r}; it must be 'min' or 'max'")


def checked_goal(owner: MetricScheduler, metric: Any, mode: Any) -> tuple[Any, Any]:  # noqa: ANN401 - users'
    """Return metric and mode: strings, or lists for several objectives; ValueError when they are wrong."""
    if not isinstance(metric, list | tuple) and not isinstance(mode, list | tuple):
        check_mode(owner, mode)
        return metric, mode
    if metric is None or mode is None:
        return metric, mode  # the other one follows
    name = type(owner).__name__
    if isinstance(metric, str) or isinstance(mode, str) or len(metric) != len(mode):
        raise ValueError(f"{name}: metric={metric!r} and mode={mode!r} must be lists of the same length")
    for one in mode:
        if one != "obs":
            check_mode(owner, one)
    goals = [goal for goal in zip(metric, mode, strict=True) if goal[1] != "obs"]
    if not goals:
        raise ValueError(f"{name}: all modes are 'obs'; one of them must be 'min' or 'max'")
    if len(goals) == 1:
        return goals[0]
    if not owner.takes_several_objectives:
        raise ValueError(
            f"{name} compares trials by one metric, not by {', '.join(map(repr, metric))}: pass one metric "
            "and mode to it, or use ASHAScheduler or HyperBandScheduler"
        )
    return [one for one, _ in goals], [one for _, one in goals]


def scheduler_goal(scheduler: object, metric: Any, mode: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return an experiment's metric and mode for a scheduler; several only for one that compares trials."""
    if isinstance(scheduler, MetricScheduler):
        return checked_goal(scheduler, metric, mode)
    if getattr(scheduler, "takes_several_objectives", False):
        return metric, mode
    return metric if isinstance(metric, str) else None, mode if isinstance(mode, str) else None


def need_goal(owner: object, metric: str | None, mode: str | None) -> str:
    """Return the metric; ValueError for an `owner` that compares trials and lacks a metric or a mode."""
    if not metric or not mode:
        raise ValueError(
            f"{type(owner).__name__} compares trials and needs a metric (now {metric!r}) and a mode "
            f"(now {mode!r}): pass metric=... and mode='min' or 'max' to it or to TuneConfig"
        )
    return metric


class MetricScheduler(FIFOScheduler):
    """Knows metric, mode and time; scores are signed so that larger is better."""

    _plain_attributes: ClassVar[tuple[str, ...]] = ("_metric", "_mode")
    takes_several_objectives: ClassVar[bool] = False

    def __init__(self, *, time_attr: str, metric: Any, mode: Any) -> None:  # noqa: ANN401 - names or lists
        self._time_attr = time_attr
        self._metric, self._mode = checked_goal(self, metric, mode)
        self._constraints: dict[str, float] = {}
        self._parameters: Any = None

    @property
    def objectives(self) -> int:
        return len(self._metric) if isinstance(self._metric, list) else 1

    @property
    def _written_version(self) -> int:
        return self._state_version if self.objectives > 1 or not self.takes_several_objectives else 1

    def set_search_properties(self, metric: Any, mode: Any, **spec: object) -> bool:  # noqa: ANN401
        """Take over the experiment's metric and mode; return False when one of them was set twice."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = checked_goal(self, metric or self._metric, mode or self._mode)
        self._constraints = dict(spec.get("constraints") or {})  # type: ignore[call-overload]
        if self._mode and self._metric is None:
            self._metric = DEFAULT_METRIC
        if self.objectives > 1:
            self._set_up(self._parameters)  # with rungs or curves of several
        return True

    def _set_up(self, parameters: Any) -> None:  # noqa: ANN401 - each class has its own
        """Start without trials."""
        self._parameters = parameters

    def on_trial_add(self, tune_controller: ControllerView, trial: Trial) -> None:
        need_goal(self, self._metric, self._mode)

    def _time_and_score(self, trial: Trial, result: dict[str, Any]) -> tuple[float, Any] | None:
        """Return time and score, several as a tuple; None when the result lacks one of them."""
        if type(self._metric) is list:
            return self._time_and_scores(trial, result)
        if self._time_attr not in result or self._metric not in result:
            return None
        time = self._number(trial, self._time_attr, result[self._time_attr])
        value = self._number(trial, self._metric, result[self._metric])
        return time, value if self._mode == "max" else -value

    def _time_and_scores(
        self, trial: Trial, result: dict[str, Any]
    ) -> tuple[float, tuple[tuple[float, ...], tuple[float, ...]]] | None:
        """Return time, and the scores with the relative violation of each constraint."""
        if self._time_attr not in result or any(metric not in result for metric in self._metric):
            return None
        values = [self._number(trial, metric, result[metric]) for metric in self._metric]
        goals = zip(values, self._mode, strict=True)
        scores = tuple(value if mode == "max" else -value for value, mode in goals)
        time = self._number(trial, self._time_attr, result[self._time_attr])
        return time, (scores, tuple(violations(result, self._constraints)))

    def _shown(self, score: Any) -> str:  # noqa: ANN401 - one or several
        """Return a score as the value that was reported, with the metric's name."""
        if isinstance(score, tuple):
            return self._all_shown(*score)
        return f"{self._metric} = {in_words(score if self._mode == 'max' else -score)}"

    def _all_shown(self, scores: Sequence[float], excesses: Sequence[float]) -> str:
        goals = zip(self._metric, self._mode, scores, strict=True)
        shown = ", ".join(f"{name} = {in_words(one if way == 'max' else -one)}" for name, way, one in goals)
        broken = ", ".join(
            f"{name} <= {in_words(bound)} by {in_words(excess * max(abs(bound), LEAST_BOUND))}"
            for (name, bound), excess in zip(self._constraints.items(), excesses, strict=False)
            if excess > 0.0
        )
        return f"{shown} (violates {broken})" if broken else shown

    def _to_plain(self) -> dict[str, Any]:
        several = {"_constraints": self._constraints} if self.objectives > 1 else {}
        return {**super()._to_plain(), **several}

    def _from_plain(self, state: dict[str, Any]) -> None:
        super()._from_plain(state)
        self._constraints = state.get("_constraints", {})

    def _number(self, trial: Trial, key: str, value: Any) -> float:  # noqa: ANN401 - whatever was reported
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TuneError(
                f"{type(self).__name__}: trial {trial.trial_id} reported {key} = {value!r}, which is not a "
                f"number: report a float (NaN for 'unknown'), or leave the key out"
            ) from None
