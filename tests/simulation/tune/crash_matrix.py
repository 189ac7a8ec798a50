"""Compare, at every commit of a simulated run, the restored experiment with the one that was not killed.

For tests of schedulers and searchers. `matrix` compares saved plug-in states, the next suggestion and the
decisions on the same next events; `resumed_runs` lets experiments that were killed run to their end.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from tests.support.memory_trial_store import MemoryTrialStore

from muster.base.clock import Clock
from muster.sim.tune.experiment import SimulatedExperiment, SimulatedRun
from muster.trials.controller import TrialController
from muster.trials.events import ContinueTrial, EngineCommand, EngineEvent
from muster.trials.experiment import ExperimentState
from muster.trials.ports import SavedExperiment
from muster.trials.restore import replay, snapshot
from muster.tune.execution.between_steps import ExperimentSaver, decode_snapshot
from muster.tune.plugin_state import PluginState


def same_state(one: bytes, other: bytes) -> bool:
    """Compare states: equal objects may have unequal pickles, and Optuna records real times."""
    return one == other or plain(one) == plain(other)


def plain(value: Any) -> Any:
    """Return the value as plain data."""
    if isinstance(value, bytes):
        return _plain_bytes(value)
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return "a moment"
    if isinstance(value, float) and value != value:
        return "nan"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _of_object(value)


def _plain_bytes(value: bytes) -> Any:
    if value[:1] == b"\x80":
        try:
            return plain(pickle.loads(value))
        except Exception:
            pass
    try:
        found = msgspec.msgpack.decode(value)
    except msgspec.MsgspecError:
        return value
    return plain(found) if isinstance(found, (dict, list)) else value


def _of_object(value: object) -> Any:
    """Return the class and the attributes of an object, or its pickle when it has no attributes."""
    name = type(value).__qualname__
    try:
        attributes = vars(value)
    except TypeError:
        return name, pickle.dumps(pickle.loads(pickle.dumps(value)))
    return name, plain(attributes)


_PLUGINS = ("search", "scheduler", "stopper")


@dataclass
class Step:
    """One round of the uninterrupted controller: its events and its commands."""

    at: float = 0.0
    events: Sequence[EngineEvent] = ()
    commands: list[EngineCommand] = field(default_factory=list)


@dataclass
class KillPoint:
    """What a kill right after one append leaves behind, and the state without the kill."""

    number: int
    store: MemoryTrialStore
    plugins: dict[str, bytes]
    seen: str  # the snapshot of the core
    suggestion: str
    next_steps: list[Step] = field(default_factory=list)  # up to the next commit
    next_plugins: dict[str, bytes] | None = None  # None: the run ended without another


class _Recorder:
    """Records what passes between controller and engine."""

    def __init__(self, run: SimulatedRun) -> None:
        self._engine, self._clock = run.engine, run.clock
        self.step = Step()

    def capacity(self) -> Any:
        return self._engine.capacity()

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        events = self._engine.poll(timeout_s)
        self.step = Step(at=self._clock.now(), events=events)
        return events

    def submit(self, command: EngineCommand) -> None:
        self.step.commands.append(command)
        self._engine.submit(command)

    def close(self) -> None:
        self._engine.close()


@dataclass(frozen=True)
class _NeverDue:
    """Virtual time for facts; for saving, time stands still: the harness decides when."""

    clock: Clock

    def now(self) -> float:
        return self.clock.now()

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


def recorded(experiment: SimulatedExperiment, *, save_every: int = 7) -> list[KillPoint]:
    """Run to the end without a crash, with a snapshot every `save_every` commits."""
    store = MemoryTrialStore(root="/simulated")
    run = experiment.begin(store)
    recorder = _Recorder(run)
    clock = _NeverDue(run.clock)
    saver = ExperimentSaver(run.state, store=store, clock=clock)
    controller = TrialController(run.state, engine=recorder, store=store, clock=clock, saver=saver)
    controller.save()
    commits = [_commit(0, run, store)]
    idle = appended = 0
    while not run.state.is_finished:
        controller.step(0.0)
        commits[-1].next_steps.append(recorder.step)
        if store.appended > appended:
            appended = store.appended
            commits[-1].next_plugins = _states(run.state)
            commits.append(_commit(len(commits), run, store))
            if len(commits) % save_every == 0:
                controller.save()
                commits[-1] = _commit(len(commits) - 1, run, store)
        idle = idle + 1 if run.engine.is_idle else 0
        if idle > 5:
            raise AssertionError("the run that is to be recorded does not end")
    return commits


def matrix(experiment: SimulatedExperiment, *, save_every: int = 7) -> tuple[int, list[str]]:
    """Return how many commits there were, and every difference that a restore made."""
    commits = recorded(experiment, save_every=save_every)
    return len(commits), [text for commit in commits for text in differences(experiment, commit)]


def differences(experiment: SimulatedExperiment, commit: KillPoint) -> Iterator[str]:
    """Yield what the restored experiment does differently from the one that was not killed."""
    state = _restored(experiment, commit.store)
    where = f"commit {commit.number}"
    yield from (f"{where}: warned: {text}" for text in state.facts.warnings)
    state.facts.warnings.clear()
    yield from _unequal(where, commit.plugins, _states(state))
    if (found := _seen(state)) != commit.seen:
        yield f"{where}: the core differs:\n  expected {commit.seen}\n  found    {found}"
    if (found := _suggestion(state)) != commit.suggestion:
        yield f"{where}: next suggestion: expected {commit.suggestion}, found {found}"
    for step in commit.next_steps:
        found = repr([*_handled(state, step)])
        if found != repr(step.commands):
            yield f"{where}: decisions on {step.events}:\n  expected {step.commands}\n  found    {found}"
            return
    if commit.next_plugins is not None:
        yield from _unequal(f"{where}, one step on", commit.next_plugins, _states(state))


def resumed_runs(experiment: SimulatedExperiment, commits: Sequence[KillPoint]) -> Iterator[SimulatedRun]:
    """Yield, for each of these commits, the run that a new driver resumed to the end."""
    for commit in commits:
        run = experiment.begin(commit.store.copy())
        saver = ExperimentSaver(run.state, store=run.store, clock=run.clock)
        saver.restore(run.store.load(), run.template.make)
        yield run.run()


def _commit(number: int, run: SimulatedRun, store: MemoryTrialStore) -> KillPoint:
    state = run.state
    return KillPoint(number, store.copy(), _states(state), _seen(state), _suggestion(state))


def _restored(experiment: SimulatedExperiment, store: MemoryTrialStore) -> ExperimentState:
    """Restore exactly to the end of the facts; trials are treated as having their processes."""
    run = experiment.begin(store.copy())
    saved = run.store.load()
    seen = None if saved.snapshot is None else decode_snapshot(saved.snapshot, saved.ended)
    replay(run.state, seen, saved.facts, run.template.make, on_loaded=lambda: _restore(run.state, saved))
    return run.state


def _restore(state: ExperimentState, saved: SavedExperiment) -> None:
    state.index.unarchived.clear()
    for name, content in saved.plugins.items():
        plugin: Any = getattr(state.plugins, name)
        if isinstance(plugin, PluginState):
            plugin.restore_state(content, state.index.trials)
        else:
            plugin.restore_state(content)


def _states(state: ExperimentState) -> dict[str, bytes]:
    plugins = {name: getattr(state.plugins, name) for name in _PLUGINS}
    return {name: each.save_state() for name, each in plugins.items() if hasattr(each, "save_state")}


def _seen(state: ExperimentState) -> str:
    return repr({**snapshot(state), "iteration": 0})


def _suggestion(state: ExperimentState) -> str:
    """Ask a copy of the searcher, so that asking changes nothing."""
    if state.plugins.search.is_finished():
        return "finished"
    trial = deepcopy(state.plugins.search).next_trial()
    return "nothing now" if trial is None else f"{trial.trial_id} {trial.config}"


def _handled(state: ExperimentState, step: Step) -> Iterator[EngineCommand]:
    """Follow the controller's order: a trial that may simply continue is notified at once."""

    later = []
    for event in step.events:
        for command in state.handle(event):
            if isinstance(command, ContinueTrial):
                yield command
            else:
                later.append(command)
    yield from later
    yield from state.advance(step.at)


def _unequal(where: str, expected: dict[str, bytes], found: dict[str, bytes]) -> Iterator[str]:
    """Our own schedulers and stoppers save plain data: their states must be equal byte by byte."""
    for name, saved in expected.items():
        if saved != found[name] and not (name == "search" and same_state(saved, found[name])):
            yield f"{where}: state of the {name}:\n  expected {saved!r}\n  found    {found[name]!r}"
