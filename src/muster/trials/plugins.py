"""Defines the plug-ins of an experiment as protocols with Ray's hook names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from muster.trials.model import Trial

CONTINUE, PAUSE, STOP, NOOP = "CONTINUE", "PAUSE", "STOP", "NOOP"
ITERATION, SECONDS = "training_iteration", "time_total_s"  # result keys that time can be counted by


class Milestone(NamedTuple):
    """A Milestone is a moment of a trial's training at which its scheduler may stop or pause it."""

    time: float  # of the result key `time_attr`
    goes_on: float  # the probability that it continues from there
    time_attr: str = ITERATION
    is_barrier: bool = False  # it gives its node back there, and waits for others


class RungToOpen(NamedTuple):
    """A RungToOpen is training that trials continue together, once all of some trials have come so far."""

    waits_for: tuple[str, ...]  # trials that are not there yet
    number: int  # of trials that continue
    time: float  # of the result key `time_attr`: what each of them trains then
    time_attr: str = ITERATION
    follows: tuple[tuple[int, float], ...] = ()  # (number, time) of the rungs after it


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
