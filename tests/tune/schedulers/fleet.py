"""A controller of a few lines, for schedulers: trials are functions of time, and nothing sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.trials.model import Trial
from muster.trials.plugins import ControllerView, PluginRequest
from muster.trials.states import TrialState
from muster.trials.trial_index import TrialIndex

_S = TrialState


class Failed(Exception):
    """Raised by a curve: the trial's code failed."""


class Ended(Exception):
    """Raised by a curve: the trial's code returned."""


class Search:
    """Hands out t1, t2, ... up to `count`, at most `limit` of them unfinished at a time."""

    metric = None

    def __init__(self, count: int, limit: int | None = None) -> None:
        self.count, self.limit, self.given, self.live = count, limit, 0, 0

    def next_trial(self) -> Trial | None:
        if self.given == self.count or (self.limit is not None and self.live >= self.limit):
            return None
        self.given += 1
        self.live += 1
        return Trial("f", trial_id=f"t{self.given}")

    def is_finished(self) -> bool:
        return self.given == self.count


class Fleet:
    """`workers` trials at a time; each step every running trial reports once, in the order of their start."""

    def __init__(self, scheduler: Any, search: Search, curve: Callable[[str, int], float], workers: int = 1):
        self.scheduler, self.search, self.curve, self.workers = scheduler, search, curve, workers
        self.index = TrialIndex({"CPU": workers})
        self.view = ControllerView(self.index, search)
        self.time: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.retries = 0
        self.save_steps = 0  # how long a checkpoint takes before a trial is paused
        self._saving: dict[str, int] = {}
        self.jobs: list[str] = []  # every start, as "trial from time"
        self.reports = 0
        self.decisions: list[tuple[str, int, str]] = []

    def run(self, max_steps: int = 10_000) -> Fleet:
        for _ in range(max_steps):
            if not self.step():
                return self
        raise AssertionError(f"stuck: { ({t.trial_id: t.status for t in self.index.live.values()}) }")

    def step(self) -> bool:
        self.fill()
        for name in list(self._saving):
            self._go_on_saving(self.index.trials[name])
        for trial in [t for t in self.index.live.values() if t.state is _S.RUNNING]:
            if trial.state is _S.RUNNING:
                self._report(trial)
        return bool(self.index.live) or not self.search.is_finished()

    def fill(self) -> None:
        """New trials, then whoever the scheduler chooses."""
        while len(self.index.pending) < 2 and (trial := self.search.next_trial()) is not None:
            self.index.add(trial)
            self.time[trial.trial_id] = 0
            self.scheduler.on_trial_add(self.view, trial)
        while self.index.pending or self.index.paused:
            trial = self.scheduler.choose_trial_to_run(self.view)
            assert self.scheduler.choose_trial_to_run(self.view) is trial, "choosing must be idempotent"
            self._apply_plugin_requests()
            if trial is None or not self.index.fits(trial):
                return
            self._start(trial)

    def statuses(self) -> dict[str, str]:
        return {trial.trial_id: trial.status for trial in self.index.order}

    def _start(self, trial: Trial) -> None:
        self.jobs.append(f"{trial.trial_id}@{self.time[trial.trial_id]}")
        if trial.state is _S.PAUSED:
            self.index.move(trial, _S.PENDING)
        self.index.move(trial, _S.STARTING)
        self.index.move(trial, _S.RUNNING)

    def _report(self, trial: Trial) -> None:
        name = trial.trial_id
        self.time[name] += 1
        try:
            result = {"training_iteration": self.time[name], "score": self.curve(name, self.time[name])}
        except Failed:
            self._fail(trial)
            return
        except Ended:
            self._complete(trial)
            return
        self.reports += 1
        decision = self.scheduler.on_trial_result(self.view, trial, result)
        trial.last_result = result
        self.decisions.append((name, self.time[name], decision))
        if decision == "STOP":
            self._complete(trial)
        elif decision == "PAUSE":
            self.index.move(trial, _S.SAVING)
            self._saving[name] = self.save_steps
            self._go_on_saving(trial)
        self._apply_plugin_requests()

    def _go_on_saving(self, trial: Trial) -> None:
        self._saving[trial.trial_id] -= 1
        if self._saving[trial.trial_id] < 0:
            del self._saving[trial.trial_id]
            trial.intent = _S.PAUSED
            self.index.move(trial, _S.STOPPING)
            self.index.move(trial, _S.PAUSED)

    def _complete(self, trial: Trial) -> None:
        self.scheduler.on_trial_complete(self.view, trial, trial.last_result)
        self._finish(trial, _S.TERMINATED)

    def _fail(self, trial: Trial) -> None:
        self.scheduler.on_trial_error(self.view, trial)
        self.failures[trial.trial_id] = self.failures.get(trial.trial_id, 0) + 1
        if self.failures[trial.trial_id] > self.retries:
            self._finish(trial, _S.ERROR)
            return
        self.time[trial.trial_id] = 0
        self.index.move(trial, _S.PENDING)
        self.scheduler.on_trial_add(self.view, trial)

    def _finish(self, trial: Trial, state: TrialState) -> None:
        self.search.live -= 1
        self.index.move(trial, state)

    def _apply_plugin_requests(self) -> None:
        for request, trial in self.view.take():
            if trial.is_finished():
                continue  # asked for twice, because choosing was
            if request is PluginRequest.REMEMBER:
                continue
            assert (request, trial.state) == (PluginRequest.STOP, _S.PAUSED)
            self.scheduler.on_trial_remove(self.view, trial)
            self._finish(trial, _S.TERMINATED)
