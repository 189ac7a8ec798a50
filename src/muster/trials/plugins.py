"""What user plug-ins look like to the core: Ray's hook names, as protocols, and the view they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from muster.trials.model import Trial

CONTINUE, PAUSE, STOP, NOOP = "CONTINUE", "PAUSE", "STOP", "NOOP"


class SearchPlugin(Protocol):
    """Hands out trials one by one."""

    metric: Any

    def next_trial(self) -> Trial | None:
        """A new PENDING trial; None: nothing now (ask again, unless `is_finished`)."""
        ...

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None: ...

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None: ...

    def is_finished(self) -> bool: ...

    def set_finished(self) -> None: ...

    def save_state(self) -> bytes:
        """Everything that decides the next suggestion, random streams included."""
        ...

    def restore_state(self, state: bytes) -> None: ...


class SchedulerPlugin(Protocol):
    """Decides which trial runs and whether it goes on."""

    metric: Any

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str: ...  # noqa: ANN401

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None: ...  # noqa: ANN401

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None: ...  # noqa: ANN401

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None: ...  # noqa: ANN401


class StopperPlugin(Protocol):
    """Ends trials, or everything."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool: ...

    def stop_all(self) -> bool: ...


class Hooks(Protocol):
    """The callbacks of an experiment, called in order; a result may be changed in place."""

    def fire(self, hook: str, *, iteration: int, trials: Sequence[Trial], **info: Any) -> None: ...  # noqa: ANN401


@dataclass(frozen=True)
class Plugins:
    """The user objects of one experiment."""

    search: SearchPlugin
    scheduler: SchedulerPlugin
    stopper: StopperPlugin | None
    hooks: Hooks
