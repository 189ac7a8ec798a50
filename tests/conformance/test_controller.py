"""Check the controller, as far as no process is needed to see it."""

from __future__ import annotations

import pytest
from tests.support.memory_trial_store import MemoryTrialStore
from tests.trials.scripted import First, ListSearch, Noted, Stage, steps, trials

from muster.base.clock import ManualClock
from muster.errors import TuneError
from muster.trials.controller import TrialController
from muster.trials.plugins import CONTINUE
from muster.tune.callback import CallbackList
from muster.tune.execution.between_steps import ExperimentSaver


class SlowStore(MemoryTrialStore):
    """A snapshot takes two seconds of its clock."""

    def __init__(self, clock):
        super().__init__()
        self._clock, self.saved_at = clock, []

    def snapshot(self, *content):
        self._clock.advance(2.0)
        self.saved_at.append(self._clock.monotonic())
        super().snapshot(*content)


@pytest.mark.conformance("C-008")
def test_a_snapshot_of_two_seconds_is_followed_by_forty_without_one():
    clock = ManualClock()
    store = SlowStore(clock)
    stage = Stage(steps(100), trials(1))
    saver = ExperimentSaver(stage.state, store=store, clock=clock)
    controller = TrialController(stage.state, engine=stage.engine, store=store, clock=clock, saver=saver)
    for _ in range(100):
        controller.step(0.0)
        clock.advance(1.0)
    waits = [later - earlier for earlier, later in zip(store.saved_at, store.saved_at[1:], strict=False)]
    assert len(waits) == 2
    assert all(38.0 < wait < 46.0 for wait in waits), waits


class StopsOthers(First):
    """At the first result of t0: stops t0, which runs, and t3, which waits."""

    def on_trial_result(self, tune_controller, trial, result):
        if trial.trial_id == "t0":
            for other in tune_controller.get_trials():
                if other.trial_id in ("t0", "t3"):
                    tune_controller.stop_trial(other)
        return CONTINUE


@pytest.mark.conformance("C-013")
def test_a_stopped_trial_makes_room_and_a_stopped_waiting_one_never_starts():
    stage = Stage(steps(5), trials(4), scheduler=StopsOthers()).run()
    started = [trial for hook, *rest in stage.hooks.fired if hook == "on_trial_start" for trial in rest]
    iterations = {t.trial_id: t.last_result.get("training_iteration") for t in stage.state.trials.values()}
    assert set(stage.statuses.values()) == {"TERMINATED"}
    assert started == ["t0", "t1", "t2"]
    assert iterations == {"t0": 1, "t1": 5, "t2": 5, "t3": None}
    assert stage.engine.most_at_once == 2


@pytest.mark.conformance("C-016")
def test_a_step_after_the_end_returns_false_and_does_nothing():
    stage = Stage(steps(1), trials(1))
    store = MemoryTrialStore()
    controller = TrialController(stage.state, engine=stage.engine, store=store, clock=ManualClock())
    while controller.step(0.0):
        pass
    told, facts = len(stage.engine.commands), store.appended
    assert [controller.step(0.0), controller.step(0.0)] == [False, False]
    assert (len(stage.engine.commands), store.appended) == (told, facts)


@pytest.mark.conformance("C-017")
@pytest.mark.parametrize("allowed", [0, 1, 2])
@pytest.mark.parametrize("is_permanent", [True, False])
def test_failures_are_counted_and_the_searcher_is_notified_only_of_the_end(allowed, is_permanent):
    attempts = []

    def script(config, start):
        attempts.append(start)
        fails = is_permanent or len(attempts) == 1
        return [{"loss": 1.0}, RuntimeError("no")] if fails else [{"loss": 1.0}] * 3

    stage = Stage(script, trials(1, max_failures=allowed)).run()
    ends_well = not is_permanent and allowed > 0
    failures = 1 if not is_permanent else allowed + 1
    assert stage.trial("t0").num_failures == failures
    assert stage.statuses == {"t0": "TERMINATED" if ends_well else "ERROR"}
    assert stage.scheduler.told.count(("error", "t0")) == failures
    assert [(trial, error) for trial, _, error in stage.search.completed] == [("t0", not ends_well)]


class Stalled(ListSearch):
    """Stalled suggests its last trial only after the test allows it."""

    continues = False

    def next_trial(self):
        return super().next_trial() if self.continues or len(self._waiting) > 1 else None


def with_search(stage, search):
    stage.search = stage.state.plugins.search = search
    stage.state.plugins.view.search_alg = search
    return stage


@pytest.mark.conformance("C-026")
def test_a_stalled_searcher_keeps_the_experiment_open():
    stage = with_search(Stage(steps(2), []), Stalled(trials(2)))
    for _ in range(20):
        assert stage.step()
    assert (stage.statuses, stage.state.is_finished) == ({"t0": "TERMINATED"}, False)
    stage.search.continues = True
    assert stage.run().statuses == {"t0": "TERMINATED", "t1": "TERMINATED"}


class EndsWhenAsked(ListSearch):
    """Finished only when it is asked for a trial that it does not have."""

    def next_trial(self):
        trial = super().next_trial()
        if trial is None:
            self.set_finished()
        return trial

    def is_finished(self):
        return self._finished


@pytest.mark.conformance("C-027")
def test_a_searcher_may_end_inside_next_trial():
    stage = with_search(Stage(steps(1), []), EndsWhenAsked(trials(1)))
    assert stage.run().statuses == {"t0": "TERMINATED"}


class Counts(Noted):
    """Counts records the hooks of steps with their iteration."""

    def fire(self, hook, *, iteration, trials, **info):
        if hook.startswith("on_step"):
            self.fired.append((hook, iteration))


@pytest.mark.conformance("C-038")
def test_a_step_ends_one_iteration_later_than_it_began():
    hooks = Counts()
    stage = Stage(steps(2), trials(1), hooks=hooks)
    store = MemoryTrialStore()
    TrialController(stage.state, engine=stage.engine, store=store, clock=ManualClock()).run()
    begun = [number for hook, number in hooks.fired if hook == "on_step_begin"]
    ended = [number for hook, number in hooks.fired if hook == "on_step_end"]
    assert begun == list(range(len(begun)))
    assert ended == [number + 1 for number in begun]


class Breaks:
    def on_trial_result(self, **info):
        raise KeyError("the callback's own slip")


@pytest.mark.conformance("C-041")
def test_an_exception_of_a_callback_is_named():
    stage = Stage(steps(2), trials(1), hooks=CallbackList([Breaks()]))
    with pytest.raises(TuneError, match=r"(?s)Breaks.*on_trial_result.*KeyError.*own slip"):
        stage.run()
