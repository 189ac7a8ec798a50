"""A controller moved by hand, for schedulers that pause: the test says who reports what, and when."""

from __future__ import annotations

from typing import Any

from muster.trials.model import Trial
from muster.trials.plugins import ControllerView, PluginRequest
from muster.trials.states import TrialState
from muster.trials.trial_index import TrialIndex

_S = TrialState


class EndedSearch:
    """Has no more trials; `searcher` is what BOHB talks to."""

    searcher: Any = None

    def is_finished(self) -> bool:
        return True


class ByHand:
    """Decisions are carried out at once, requests after the hook has returned."""

    def __init__(self, scheduler: Any, count: int = 0, search: Any = None) -> None:
        self.scheduler = scheduler
        self.index = TrialIndex({"CPU": 10_000})
        self.view = ControllerView(self.index, search or EndedSearch())
        self.saves_slowly = False  # a pause gets stuck in SAVING until `rest`
        self.trials = [self.add() for _ in range(count)]

    def add(self) -> Trial:
        trial = Trial("f", trial_id=f"t{len(self.index.order)}")
        self.index.add(trial)
        self.scheduler.on_trial_add(self.view, trial)
        self._apply_plugin_requests()
        return trial

    def start(self, *trials: Trial) -> None:
        for trial in trials:
            if trial.state is _S.PAUSED:
                self.index.move(trial, _S.PENDING)
            self.index.move(trial, _S.STARTING)
            self.index.move(trial, _S.RUNNING)

    def report(self, trial: Trial, time: float, score: float, **more: Any) -> str:
        """The decision on a result; a trial that does not run is started before."""
        if trial.state is not _S.RUNNING:
            self.start(trial)
        result = {"training_iteration": time, "score": score, **more}
        decision = self.scheduler.on_trial_result(self.view, trial, result)
        trial.last_result = result
        if decision == "STOP":
            self.complete(trial)
        elif decision == "PAUSE":
            self.index.move(trial, _S.SAVING)
            if not self.saves_slowly:
                self.rest(trial)
        self._apply_plugin_requests()
        return decision

    def rest(self, trial: Trial) -> None:
        trial.intent = _S.PAUSED
        self.index.move(trial, _S.STOPPING)
        self.index.move(trial, _S.PAUSED)

    def complete(self, trial: Trial, result: dict[str, Any] | None = None) -> None:
        self.scheduler.on_trial_complete(self.view, trial, result or trial.last_result)
        self.index.move(trial, _S.TERMINATED)
        self._apply_plugin_requests()

    def remove(self, trial: Trial) -> None:
        self.scheduler.on_trial_remove(self.view, trial)
        self.index.move(trial, _S.TERMINATED)
        self._apply_plugin_requests()

    def fail(self, trial: Trial, *, again: bool = False) -> None:
        self.scheduler.on_trial_error(self.view, trial)
        self.index.move(trial, _S.PENDING if again else _S.ERROR)
        if again:
            self.scheduler.on_trial_add(self.view, trial)
        self._apply_plugin_requests()

    def choose(self) -> str | None:
        """Twice, because choosing must be idempotent."""
        first = self.choose_once()
        assert self.scheduler.choose_trial_to_run(self.view) is first
        assert not self.view.requests
        return None if first is None else first.trial_id

    def choose_once(self) -> Trial | None:
        chosen: Trial | None = self.scheduler.choose_trial_to_run(self.view)
        self._apply_plugin_requests()
        return chosen

    def statuses(self) -> list[str]:
        return [trial.status for trial in self.index.order]

    def _apply_plugin_requests(self) -> None:
        for request, trial in self.view.take():
            if request is PluginRequest.REMEMBER or trial.is_finished():
                continue
            assert request is PluginRequest.STOP
            if trial.state in (_S.RUNNING, _S.SAVING):
                self.complete(trial)
            else:
                self.remove(trial)
