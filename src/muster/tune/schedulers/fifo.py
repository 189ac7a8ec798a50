"""FIFOScheduler: first come, first served; nothing is ever stopped early."""

from __future__ import annotations

from typing import Any

from muster.trials.controller_view import ControllerView
from muster.trials.model import Trial
from muster.tune.execution.plugin_state import Plain
from muster.tune.schedulers.trial_scheduler import TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Runs trials in the order in which they began to wait; also the base of schedulers that only stop."""

    _state_kind = "fifo"

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

    def debug_string(self) -> str:
        return "Using FIFO scheduling algorithm."

    def _to_plain(self) -> Plain:
        return {"metric": self._metric}

    def _from_plain(self, state: Plain) -> None:
        self._metric = state["metric"]


def first_waiting(tune_controller: ControllerView) -> Trial | None:
    """The first PENDING trial, else the first PAUSED one; other controllers than ours are searched."""
    if hasattr(tune_controller, "first_waiting"):
        return tune_controller.first_waiting()
    trials = tune_controller.get_trials()
    for status in ("PENDING", "PAUSED"):
        for trial in trials:
            if trial.status == status:
                return trial
    return None
