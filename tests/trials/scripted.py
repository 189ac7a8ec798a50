"""A world for the trial core without processes: scripted trials, a list as searcher, FIFO as scheduler.

`Stage` runs whole experiments in memory and in no time; every step is one event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointRef, Trial
from muster.trials.plugins import CONTINUE, Plugins
from muster.trials.ports import Engine
from muster.trials.template import Settings

Script = Callable[
    [dict, int], Iterable[object]
]  # config, first iteration -> metrics, or an exception to fail


class ScriptedEngine(Engine):
    """Runs `script(config, start)`; each item is a report, an exception or TrialFailure a failure."""

    def __init__(self, script: Script, capacity=None) -> None:
        self._script = script
        self._capacity = capacity or {"CPU": 2}
        self.events: deque = deque()
        self.running: dict[str, list] = {}
        self.most_at_once = 0
        self.commands: list = []
        self.now = 0.0

    def capacity(self):
        return self._capacity

    def submit(self, command) -> None:
        self.commands.append(command)
        match command:
            case StartTrial():
                self._start(command)
            case ContinueTrial():
                self._next(command.trial_id)
            case SaveTrial():
                self._save(command.trial_id)
            case StopTrial():
                if self.running.pop(command.trial_id, None) is not None:
                    self.events.append(TrialExited(trial_id=command.trial_id, at=self._tick()))

    def poll(self, timeout_s: float):
        return [self.events.popleft()] if self.events else []

    def close(self) -> None:
        self.running.clear()

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def _start(self, command: StartTrial) -> None:
        done = command.checkpoint.metrics["training_iteration"] if command.checkpoint else 0
        script = iter(self._script(dict(command.config), done))
        self.running[command.trial_id] = [script, done, command.checkpoint_index]
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.events.append(TrialStarted(trial_id=command.trial_id, at=self._tick()))
        self._next(command.trial_id)

    def _next(self, trial_id: str) -> None:
        if trial_id not in self.running:
            return
        run = self.running[trial_id]
        item = next(run[0], None)
        at = self._tick()
        if item is None:
            del self.running[trial_id]
            self.events.append(TrialExited(trial_id=trial_id, at=at, is_done=True))
        elif isinstance(item, (Exception, TrialFailure)):
            del self.running[trial_id]
            is_told = isinstance(item, TrialFailure)
            failure = item if is_told else TrialFailure(kind=TrialFailureKind.USER_ERROR, message=str(item))
            self.events.append(TrialExited(trial_id=trial_id, at=at, failure=failure))
        else:
            run[1] += 1
            result = {"training_iteration": run[1], "done": False, **item}
            self.events.append(TrialReported(trial_id=trial_id, at=at, result=result))

    def _save(self, trial_id: str) -> None:
        run = self.running[trial_id]
        run[2] += 1
        ref = CheckpointRef(
            path=f"/x/{trial_id}/checkpoint_{run[2]:06d}",
            index=run[2],
            metrics={"training_iteration": run[1]},
        )
        self.events.append(CheckpointSaved(trial_id=trial_id, at=self._tick(), checkpoint=ref))


class ListSearch:
    """Hands out these trials and notes what it is told."""

    metric = None

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._waiting = deque(trials)
        self._finished = False
        self.results: list = []
        self.completed: list = []

    def next_trial(self):
        return self._waiting.popleft() if self._waiting else None

    def is_finished(self) -> bool:
        return self._finished or not self._waiting

    def set_finished(self) -> None:
        self._finished = True

    def on_trial_result(self, trial_id, result) -> None:
        self.results.append((trial_id, result["training_iteration"]))

    def on_trial_complete(self, trial_id, result=None, error=False) -> None:
        self.completed.append((trial_id, (result or {}).get("training_iteration"), error))


class First:
    """FIFO; `decide` may be replaced."""

    metric = None

    def __init__(self, decide=lambda trial, result: CONTINUE) -> None:
        self._decide = decide
        self.told: list = []

    def on_trial_add(self, tune_controller, trial) -> None:
        self.told.append(("add", trial.trial_id))

    def on_trial_error(self, tune_controller, trial) -> None:
        self.told.append(("error", trial.trial_id))

    def on_trial_result(self, tune_controller, trial, result) -> str:
        return self._decide(trial, result)

    def on_trial_complete(self, tune_controller, trial, result) -> None:
        self.told.append(("complete", trial.trial_id))

    def on_trial_remove(self, tune_controller, trial) -> None:
        self.told.append(("remove", trial.trial_id))

    def choose_trial_to_run(self, tune_controller):
        return tune_controller.first_waiting()


class Noted:
    """Hooks that are only noted."""

    def __init__(self) -> None:
        self.fired: list = []

    def fire(self, hook, *, iteration, trials, **info) -> None:
        self.fired.append((hook, info["trial"].trial_id) if "trial" in info else (hook,))


class Stage:
    """An experiment with everything that stands around it."""

    def __init__(
        self, script, trials, *, scheduler=None, stopper=None, capacity=None, hooks=None, **settings
    ):
        self.engine = ScriptedEngine(script, capacity)
        self.search = ListSearch(trials)
        self.scheduler = scheduler or First()
        self.hooks = hooks or Noted()
        self.state = ExperimentState(
            Settings(name="exp", experiment_dir="/x", **settings),
            Plugins(search=self.search, scheduler=self.scheduler, stopper=stopper, hooks=self.hooks),
            capacity=self.engine.capacity(),
        )
        self.facts: list = []

    def step(self) -> bool:
        """As TrialController.step, without a disk."""
        for event in self.engine.poll(0.0):
            for command in self.state.handle(event):
                self.engine.submit(command)
        for command in self.state.advance(self.engine.now):
            self.engine.submit(command)
        self.facts.extend(self.state.facts.take())
        return not self.state.is_finished

    def run(self, limit: int = 10_000) -> Stage:
        for _ in range(limit):
            if not self.step():
                return self
        raise AssertionError(f"not finished after {limit} steps: {self.statuses}")

    @property
    def statuses(self) -> dict[str, str]:
        return {t.trial_id: t.status for t in self.state.trials.values()}

    def trial(self, trial_id: str) -> Trial:
        return self.state.trials[trial_id]


def trials(count: int = 1, **changes) -> list[Trial]:
    """`count` trials t0, t1, ... with config {"i": n}."""
    return [
        Trial("f", trial_id=f"t{i}", config={"i": i}, relative_logdir=f"t{i}", **changes)
        for i in range(count)
    ]


def steps(count: int) -> Script:
    """Report `loss` counting down, `count` times in all, from wherever the trial stands."""
    return lambda config, start: [{"loss": 1.0 / (i + 1)} for i in range(start, count)]
