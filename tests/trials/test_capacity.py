"""An engine that grows and shrinks: who is handed to it, and who is refused."""

from __future__ import annotations

import re

from tests.support.memory_trial_store import MemoryTrialStore
from tests.trials.scripted import Stage, steps, trials

from muster.base.clock import ManualClock
from muster.trials.controller import TrialController
from muster.trials.events import CapacityChanged, StartTrial
from muster.trials.placement_group import PlacementGroupFactory


def started(commands) -> list[str]:
    return [command.trial_id for command in commands if isinstance(command, StartTrial)]


def grown(cpus: float, *, is_bounded: bool = True) -> CapacityChanged:
    return CapacityChanged(at=1.0, capacity={"CPU": cpus}, is_bounded=is_bounded)


def test_trials_follow_the_capacity_up_and_down():
    state = Stage(steps(1), trials(9), capacity={"CPU": 2}).state
    assert started(state.advance(0.0)) == ["t0", "t1"]
    assert state.handle(grown(5)) == []
    assert started(state.advance(1.0)) == ["t2", "t3", "t4"]
    state.handle(grown(3))
    assert (started(state.advance(2.0)), state.plugins.view.occupancy().capacity.to_floats()) == (
        [],
        {"CPU": 3.0},
    )
    state.handle(grown(6))
    assert started(state.advance(3.0)) == ["t5"]


def test_a_trial_that_no_longer_fits_at_all_is_refused_with_what_there_is():
    wide = PlacementGroupFactory([{"CPU": 4}])
    stage = Stage(steps(1), trials(1, placement_group_factory=wide), capacity={"CPU": 8})
    stage.state.handle(grown(2))
    stage.state.advance(1.0)
    assert stage.statuses == {"t0": "ERROR"}
    (failure,) = [fact.failure for fact in stage.state.facts.take() if hasattr(fact, "failure")]
    assert re.findall(r"\bt0\b|\(.*?\)", failure.message) == ["t0", "(CPU: 4)", "(CPU: 2)"]


def test_an_engine_that_may_grow_without_a_bound_gets_as_many_as_a_searcher_may_be_ahead():
    wide = trials(9, placement_group_factory=PlacementGroupFactory([{"CPU": 4}]))
    state = Stage(steps(1), wide, capacity={"CPU": 1}, max_pending=3).state
    state.handle(grown(1, is_bounded=False))
    seen = [trial_id for at in range(5) for trial_id in started(state.advance(float(at)))]
    assert seen == ["t0", "t1", "t2"]


class Deaf:
    """An engine on which nothing ever starts; notes how long it was waited for."""

    def __init__(self, cpus: float) -> None:
        self.cpus, self.asked, self.waits = cpus, [], []

    def capacity(self):
        return {"CPU": self.cpus}

    def submit(self, command) -> None:
        self.asked.append(command.trial_id)

    def poll(self, timeout_s):
        self.waits.append(timeout_s)
        return ()

    def close(self) -> None: ...


def test_a_searcher_that_is_asked_one_by_one_fills_the_engine_without_waiting_in_between():
    engine = Deaf(4)
    stage = Stage(steps(1), trials(9), capacity=engine.capacity(), max_pending=1)
    store = MemoryTrialStore(root="/x")
    controller = TrialController(stage.state, engine=engine, store=store, clock=ManualClock())
    for _ in range(7):
        controller.step(0.1)
    assert engine.asked == ["t0", "t1", "t2", "t3"]
    assert engine.waits == [0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1]
