"""Apply what users ask of a running experiment, between two steps of its driver. Imported lazily."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone

from muster.base.clock import Clock
from muster.stores.experiment.requests import ExperimentRequest, RequestReader
from muster.trials.experiment import ExperimentState
from muster.trials.template import Limits
from muster.tune.execution.launch import ExperimentSpec
from muster.tune.execution.restore import save_limits


class UserRequests:
    """Reads requests and hands them to the state, which records each as a fact before it acts."""

    def __init__(
        self,
        spec: ExperimentSpec,
        state: ExperimentState,
        clock: Clock,
        *,
        stop: threading.Event,
        note: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        self._spec, self._state, self._clock = spec, state, clock
        self._stop, self._note, self._save = stop, note, save
        self._reader = RequestReader(spec.place.directory, clock, note)

    def apply(self) -> bool:
        """Apply what was asked since the last call; return whether the driver is to stop."""
        for request in self._reader.poll():
            self._apply(request, self._clock.now())
        return self._stop.is_set()

    def _apply(self, request: ExperimentRequest, at: float) -> None:
        for trial_id in request.trials:
            if self._state.stop_on_request(trial_id, at):
                self._note(f"Stopping trial {trial_id}, as requested.")
        if request.cost_budget is not None or request.deadline is not None:
            self._change_limits(request, at)
        if request.stop:
            self._note("Stopping, as requested: everything is saved, trials end.")
            self._reader.forget()
            self._stop.set()

    def _change_limits(self, request: ExperimentRequest, at: float) -> None:
        before = self._state.limits
        after = Limits(
            cost_budget=before.cost_budget if request.cost_budget is None else request.cost_budget,
            deadline=before.deadline if request.deadline is None else request.deadline,
        )
        if not self._state.change_limits(after, at):
            self._note("This experiment has no such limit: the request to change it is ignored.")
            return
        tune = self._spec.tune
        tune.cost_budget = after.cost_budget
        tune.deadline = (
            None if after.deadline is None else datetime.fromtimestamp(after.deadline, timezone.utc)
        )
        with suppress(OSError):  # else a resume has the limits of the start
            save_limits(self._spec.place, tune)
        self._save()
        self._note(f"Limits were changed, as requested: {_in_words(after)}.")


def _in_words(limits: Limits) -> str:
    budget = "" if limits.cost_budget is None else f"a budget of ${limits.cost_budget:g}"
    if limits.deadline is None:
        return budget
    until = datetime.fromtimestamp(limits.deadline).astimezone().isoformat(" ", "seconds")
    return f"{budget}{' and ' if budget else ''}a deadline at {until}"
