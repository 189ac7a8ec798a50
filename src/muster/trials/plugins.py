"""Defines the plug-ins of an experiment as protocols with Ray's hook names, and calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from muster.errors import MusterError, TuneError
from muster.trials.controller_view import ControllerView
from muster.trials.model import Trial
from muster.trials.trial_index import TrialIndex

CONTINUE, PAUSE, STOP, NOOP = "CONTINUE", "PAUSE", "STOP", "NOOP"
_DECISIONS = frozenset({CONTINUE, PAUSE, STOP, NOOP})


class SearchPlugin(Protocol):
    """A SearchPlugin suggests trials, one per call."""

    metric: Any

    def next_trial(self) -> Trial | None:
        """Returns a new PENDING trial; None: no trial is available now (try again, unless `is_finished`)."""
        ...

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None: ...

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None: ...

    def is_finished(self) -> bool: ...

    def set_finished(self) -> None: ...

    def save_state(self) -> bytes:
        """Returns everything that determines the next suggestion, including random streams."""
        ...

    def restore_state(self, state: bytes) -> None: ...


class SchedulerPlugin(Protocol):
    """A SchedulerPlugin decides which trial runs and whether a trial continues."""

    metric: Any

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str: ...  # noqa: ANN401

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None: ...  # noqa: ANN401

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None: ...  # noqa: ANN401


class StopperPlugin(Protocol):
    """A StopperPlugin ends single trials or the whole experiment."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool: ...

    def stop_all(self) -> bool: ...


class Hooks(Protocol):
    """Hooks call the callbacks of an experiment in order; a callback may change a result in place."""

    def fire(self, hook: str, *, iteration: int, trials: Sequence[Trial], **info: Any) -> None: ...  # noqa: ANN401


@dataclass(frozen=True)
class Plugins:
    """Plugins are the user objects of one experiment."""

    search: SearchPlugin
    scheduler: SchedulerPlugin
    stopper: StopperPlugin | None
    hooks: Hooks


class PluginCalls:
    """A PluginCalls object calls the plug-ins of one experiment; its errors name the plug-in that failed."""

    def __init__(self, plugins: Plugins, index: TrialIndex) -> None:
        self.search, self.scheduler = plugins.search, plugins.scheduler
        self.stopper = plugins.stopper
        self.hooks = plugins.hooks  # replaced while facts are handled again after a crash
        self.view = ControllerView(index, plugins.search)
        self.iteration = 0  # steps of the controller so far
        self._trials = index.order

    def fire(self, hook: str, **info: Any) -> None:  # noqa: ANN401 - whatever the hook takes
        """Calls one hook of every callback."""
        self.hooks.fire(hook, iteration=self.iteration, trials=self._trials, **info)

    def decision(self, trial: Trial, flat: dict[str, Any]) -> str:
        """Returns the decision of the scheduler on a result."""
        try:
            decision = self.scheduler.on_trial_result(self.view, trial, flat)
        except MusterError:
            raise
        except Exception as error:
            raise _raised(self.scheduler, "on_trial_result", trial, error) from error
        if decision not in _DECISIONS:
            raise TuneError(
                f"{type(self.scheduler).__name__}.on_trial_result answered {decision!r} for trial "
                f"{trial.trial_id}; it must be one of {', '.join(sorted(_DECISIONS))}"
            )
        return decision

    def stopper_stops(self, trial: Trial, result: dict[str, Any]) -> bool:
        """Returns whether the stopper ends the trial that reported this result."""
        if self.stopper is None:
            return False
        try:
            return bool(self.stopper(trial.trial_id, result))
        except MusterError:
            raise
        except Exception as error:
            raise _raised(self.stopper, "__call__", trial, error) from error

    def stops_all(self) -> bool:
        return self.stopper is not None and bool(self.stopper.stop_all())

    def choose(self) -> Trial | None:
        """Returns the trial that the scheduler starts next."""
        chooser = f"{type(self.scheduler).__name__}.choose_trial_to_run"
        try:
            trial: Any = self.scheduler.choose_trial_to_run(self.view)
        except MusterError:
            raise
        except Exception as error:
            raise TuneError(
                f"{chooser} raised {type(error).__name__}: {error}. "
                "The experiment ends here; fix it and resume"
            ) from error
        if trial is None or isinstance(trial, Trial):
            return trial
        raise TuneError(f"{chooser} answered {trial!r}: it must be one of the trials, or None")


def _raised(plugin: object, hook: str, trial: Trial, error: Exception) -> TuneError:
    """Names the plug-in that failed, for users who wrote their own; the traceback is that of the cause."""
    return TuneError(
        f"{type(plugin).__name__}.{hook} raised {type(error).__name__} on a result of trial "
        f"{trial.trial_id}: {error}. The experiment ends here; fix it and resume"
    )
