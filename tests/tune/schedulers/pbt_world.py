"""Experiments for PBT in virtual time: trials add their `lr` to `x` at every step; saving takes a while.

`World` is an engine of a few lines around the real core, with everything that can go wrong drawn by a seed.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass
from heapq import heappop, heappush

from tests.trials.scripted import Noted

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
from muster.trials.model import CheckpointPolicy, CheckpointRef, TrialPolicies
from muster.trials.plugins import Plugins
from muster.trials.restore import snapshot
from muster.trials.template import Settings, TrialTemplate
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.space import grid_search


@dataclass
class Chaos:
    """Probabilities, each per step or per save; and how long things take."""

    fails: float = 0.0
    returns: float = 0.0  # its code returns before the end
    is_nan: float = 0.0
    saves_nothing: float = 0.0
    never_reports: float = 0.0  # per start
    slowest_step: int = 1
    slowest_save: int = 0


class Process:
    def __init__(self, command: StartTrial) -> None:
        self.config = dict(command.config)
        self.index = command.checkpoint_index
        metrics = command.checkpoint.metrics if command.checkpoint else {}
        self.step, self.x = metrics.get("training_iteration", 0), metrics.get("x", 0.0)
        self.wants_save = False
        self.is_waiting = False


class World:
    """One experiment: `lrs` are the trials' learning rates."""

    def __init__(
        self, scheduler, lrs, *, cpus=None, end=20, chaos=None, seed=0, retries=0, policy=None, space=None
    ):
        self.rng = random.Random(seed)
        self.chaos = chaos or Chaos()
        self.end, self.seed = end, seed
        self.template = TrialTemplate(
            trainable_name="f",
            param_space={"lr": grid_search(lrs)} if space is None else space,
            stopping_criterion={"training_iteration": end},
            policies=TrialPolicies(max_failures=retries, checkpoint_policy=policy or CheckpointPolicy()),
        )
        self.capacity = {"CPU": cpus or len(lrs)}
        self.state = self.fresh(scheduler)
        self.heap: list = []
        self.order = 0
        self.now = 0.0
        self.running: dict[str, Process] = {}
        self.facts: list = []
        self.starts: list[tuple[str, int, dict]] = []  # trial, from which step, with which config
        self.deleted: set[str] = set()

    def fresh(self, scheduler):
        search = BasicVariantGenerator(random_state=3, id_prefix="abcde")
        search.add_configurations([self.template])
        settings = Settings(name="e", experiment_dir="/x", max_pending=200)
        plugins = Plugins(search=search, scheduler=scheduler, stopper=None, hooks=Noted())
        return ExperimentState(settings, plugins, capacity=self.capacity)

    @property
    def trials(self):
        return list(self.state.trials.values())

    def run(self, limit=20_000):
        for _ in range(limit):
            if not self.step():
                return self
        raise AssertionError(f"stuck: { {t.trial_id: (t.state, t.last_result) for t in self.trials} }")

    def step(self) -> bool:
        if self.heap:
            self.now, _, process, event = heappop(self.heap)
            if process is None or self.running.get(event.trial_id) is process:
                self._tell(event)
        self._obey(self.state.advance(self.now))
        self.facts.extend(self.state.facts.take())
        live = any(not t.is_finished() or t.trial_id in self.running for t in self.trials)
        assert self.heap or not live or self.state.is_finished, f"nothing can happen: {self._seen()}"
        return not self.state.is_finished

    def _seen(self):
        return {t.trial_id: (t.state, t.last_result.get("training_iteration")) for t in self.trials}

    def _tell(self, event) -> None:
        if isinstance(event, TrialReported):
            self.running[event.trial_id].is_waiting = True
        if isinstance(event, TrialExited):
            self.running.pop(event.trial_id, None)
        self._obey(self.state.handle(event))
        process = self.running.get(event.trial_id)
        if process is not None and process.is_waiting and process.wants_save:
            self._save(event.trial_id, process)

    def _obey(self, commands) -> None:
        for command in commands:
            name = command.trial_id
            match command:
                case StartTrial():
                    assert name not in self.running, "two processes of one trial"
                    process = self.running[name] = Process(command)
                    assert command.checkpoint is None or command.checkpoint.path not in self.deleted
                    self.starts.append((name, process.step, process.config))
                    self._later(process, TrialStarted(trial_id=name, at=self.now))
                    self._go_on(name, process)
                case ContinueTrial() if name in self.running:
                    self._go_on(name, self.running[name])
                case SaveTrial() if name in self.running:
                    process = self.running[name]
                    process.wants_save = True
                    if process.is_waiting:
                        self._save(name, process)
                case StopTrial() if name in self.running:
                    self.running[name] = Process(_NO_ONE)  # what was on its way is lost
                    self._later(
                        self.running[name], TrialExited(trial_id=name, at=self.now), self.rng.randint(0, 1)
                    )

    def _go_on(self, name, process) -> None:
        process.is_waiting = False
        draw, chaos = self.rng.random, self.chaos
        delay = self.rng.randint(1, chaos.slowest_step)
        if draw() < chaos.fails:
            failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message="drawn")
            self._later(process, TrialExited(trial_id=name, at=self.now, failure=failure), delay)
        elif draw() < chaos.returns or (process.step == 0 and draw() < chaos.never_reports):
            self._later(process, TrialExited(trial_id=name, at=self.now, is_done=True), delay)
        else:
            process.step += 1
            process.x += process.config["lr"]
            score = float("nan") if draw() < chaos.is_nan else process.x
            result = {"training_iteration": process.step, "score": score, "done": False}
            self._later(process, TrialReported(trial_id=name, at=self.now, result=result), delay)

    def _save(self, name, process) -> None:
        process.wants_save = False
        ref = None
        if self.rng.random() >= self.chaos.saves_nothing:
            process.index += 1
            metrics = {"training_iteration": process.step, "x": process.x, "trial_id": name}
            ref = CheckpointRef(
                path=f"/x/{name}/checkpoint_{process.index:06d}", index=process.index, metrics=metrics
            )
        delay = self.rng.randint(0, self.chaos.slowest_save)
        self._later(process, CheckpointSaved(trial_id=name, at=self.now, checkpoint=ref), delay)

    def _later(self, process, event, delay=0) -> None:
        self.order += 1
        heappush(self.heap, (self.now + delay, self.order, process, event))

    def moment(self):
        """Everything a snapshot holds, and how many facts came before it."""
        state = self.state
        return (
            len(self.facts),
            deepcopy(snapshot(state)),
            state.plugins.search.save_state(),
            state.plugins.scheduler.save_state(),
        )


_NO_ONE = StartTrial(
    trial_id="", trial_name="", trainable_name="", config={}, resources=None, trial_dir="", experiment_name=""
)
