"""Crash-exact: at every step of a run, the restored experiment stands where the running one stood."""

from __future__ import annotations

from copy import deepcopy

import pytest
from tests.trials.scripted import Noted, ScriptedEngine

from muster.errors import TuneError
from muster.trials.events import TrialCreated, TrialExited, TrialFailureKind, TrialStopRequested
from muster.trials.experiment import ExperimentState
from muster.trials.model import CheckpointPolicy, FailurePolicy, TrialPolicies
from muster.trials.plugins import Plugins
from muster.trials.restore import replay, restore, snapshot
from muster.trials.template import Settings, TrialTemplate
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.space import grid_search, uniform

pytestmark = pytest.mark.slow

TEMPLATE = TrialTemplate(
    trainable_name="f",
    param_space={"x": uniform(0.0, 1.0), "layers": grid_search([1, 2])},
    num_samples=6,
    policies=TrialPolicies(max_failures=1, checkpoint_policy=CheckpointPolicy(frequency=2, num_to_keep=2)),
)


def script(config, start):
    """Better with larger x; every fifth step of a trial with a small x fails once."""
    for step in range(start, 9):
        if step == 4 and start == 0 and config["x"] < 0.3:
            yield ValueError("once")
            return
        yield {"score": config["x"] * (step + 1) / config["layers"], "cost": config["layers"]}


def plugins(kind):
    search = BasicVariantGenerator(random_state=11, id_prefix="abcde")
    search.add_configurations([TEMPLATE])
    if kind == "fifo":
        return search, FIFOScheduler()
    several = kind.startswith("several ")
    goal = (
        {"metric": ["score", "cost"], "mode": ["max", "min"]}
        if several
        else {"metric": "score", "mode": "max"}
    )
    asha = ASHAScheduler(
        **goal, max_t=9, grace_period=1, reduction_factor=3, type=kind.split()[-1], brackets=2, seed=5
    )
    return search, asha


class RaisesAtEnds(Noted):
    """A callback that raises at the end of every second trial."""

    def fire(self, hook, *, trial=None, **info):
        if hook == "on_trial_complete" and trial.number % 2:
            raise TuneError("callback RaisesAtEnds.on_trial_complete raised")


def fresh(kind, capacity, hooks=None):
    search, scheduler = plugins(kind)
    settings = Settings(name="e", experiment_dir="/x", max_pending=4, failure=FailurePolicy())
    asked = Plugins(search=search, scheduler=scheduler, stopper=None, hooks=hooks or Noted())
    return ExperimentState(settings, asked, capacity=capacity)


def recorded(kind, limit=400, hooks=None):
    """A run, and what was true after each of its steps."""
    engine = ScriptedEngine(script, {"CPU": 3})
    state = fresh(kind, engine.capacity(), hooks)
    facts, moments = [], []
    for _ in range(limit):
        for event in engine.poll(0.0):
            for command in state.handle(event):
                engine.submit(command)
        if len(moments) in (25, 40):  # the user stops a trial
            state.stop_on_request(next(iter(state.index.live)), engine.now)
        for command in state.advance(engine.now):
            engine.submit(command)
        facts.extend(state.facts.take())
        moments.append(
            (
                len(facts),
                deepcopy(snapshot(state)),
                state.plugins.search.save_state(),
                state.plugins.scheduler.save_state(),
            )
        )
        if state.is_finished:
            return facts, moments
    raise AssertionError("the recorded run does not end")


def restored(kind, moment, facts):
    """A new process: plug-ins and picture of `moment`, then the facts."""
    state = fresh(kind, {"CPU": 3})
    start = 0
    if moment is not None:
        start, seen, search, scheduler = moment
        state.plugins.search.restore_state(search)
        state.plugins.scheduler.restore_state(scheduler)
    else:
        seen = None
    replay(state, deepcopy(seen), facts[start:], TEMPLATE.make)
    return state


@pytest.mark.parametrize("hooks", [None, RaisesAtEnds()], ids=["quiet", "raising"])
@pytest.mark.parametrize("kind", ["fifo", "stopping", "promotion", "several stopping", "several promotion"])
def test_at_every_step_the_restored_experiment_stands_where_the_running_one_stood(kind, hooks):
    facts, moments = recorded(kind, hooks=hooks)
    plugin = [fact for fact in facts if isinstance(fact, TrialExited) and fact.failure is not None]
    assert any(fact.failure.kind is TrialFailureKind.PLUGIN for fact in plugin) == (hooks is not None)
    assert (len(moments) > 60, any(isinstance(fact, TrialStopRequested) for fact in facts)) == (True, True)
    for position in range(len(moments)):
        count, seen, search, scheduler = moments[position]
        for base in (None, moments[position // 2]):
            state = restored(kind, base, facts[:count])
            now = snapshot(state)
            assert state.facts.warnings == []
            assert {**now, "iteration": 0} == {**seen, "iteration": 0}, f"step {position}"
            assert state.plugins.search.save_state() == search
            assert state.plugins.scheduler.save_state() == scheduler


def saved_as_it_runs(kind, every):
    """A run that saves now and then: its last picture, all that had ended before, the facts since."""
    engine = ScriptedEngine(script, {"CPU": 3})
    state = fresh(kind, engine.capacity())
    ended, step = [], 0
    while not state.is_finished:
        for event in engine.poll(0.0):
            for command in state.handle(event):
                engine.submit(command)
        for command in state.advance(engine.now):
            engine.submit(command)
        if step % every == 0:
            state.facts.take()
            seen = deepcopy(snapshot(state))
            ended += seen["ended"]
            state.index.unarchived.clear()
            moment = (
                0,
                {**seen, "ended": list(ended)},
                state.plugins.search.save_state(),
                state.plugins.scheduler.save_state(),
            )
        step += 1
        yield state, moment, state.facts._facts


@pytest.mark.parametrize("kind", ["fifo", "promotion"])
def test_a_trial_that_ended_is_saved_once_and_restored_from_where_it_was_saved(kind):
    for state, moment, facts in saved_as_it_runs(kind, every=5):
        again = restored(kind, moment, list(facts))
        as_seen = {trial.trial_id: trial.statistics.saved() for trial in again.index.order}
        assert list(as_seen) == list(state.trials)
        assert as_seen == {trial.trial_id: trial.statistics.saved() for trial in state.index.order}
        assert [(t.number, t.state, t.last_result) for t in again.index.order] == [
            (t.number, t.state, t.last_result) for t in state.index.order
        ]
        numbers = [record["number"] for record in moment[1]["ended"]]
        assert len(set(numbers)) == len(numbers)
    assert len(numbers) > 1


def test_the_last_record_of_a_trial_that_ran_again_is_true():
    facts, moments = recorded("fifo")
    _, seen, search, scheduler = moments[-1]
    early, late = deepcopy(seen["ended"][0]), deepcopy(seen["ended"][0])
    early["last_result"] = {"score": -1.0}
    twice = {**seen, "ended": [early, *seen["ended"][1:], late]}
    state = restored("fifo", (len(facts), twice, search, scheduler), facts)
    assert len(state.index.order) == len(seen["ended"])
    assert state.index.order[early["number"]].last_result == late["last_result"]


@pytest.mark.parametrize("kind", ["fifo", "stopping", "promotion"])
def test_a_revived_experiment_runs_to_its_end_without_losing_or_doubling_a_trial(kind):
    facts, moments = recorded(kind)
    for position in range(0, len(moments), 9):
        count, *_ = moments[position]
        state = fresh(kind, {"CPU": 3})
        restore(state, None, facts[:count], TEMPLATE.make)
        engine = ScriptedEngine(script, {"CPU": 3})
        for _ in range(400):
            for event in engine.poll(0.0):
                for command in state.handle(event):
                    engine.submit(command)
            for command in state.advance(engine.now):
                engine.submit(command)
            if state.is_finished:
                break
        assert state.is_finished
        assert sorted(state.trials) == sorted(f.trial_id for f in facts if isinstance(f, TrialCreated))
        assert {t.status for t in state.trials.values()} == {"TERMINATED"}


def test_a_searcher_that_does_not_repeat_itself_is_named_and_the_record_wins():
    facts, _ = recorded("fifo")
    state = fresh("fifo", {"CPU": 3})
    state.plugins.search = BasicVariantGenerator(random_state=12, id_prefix="abcde")
    state.plugins.search.add_configurations([TEMPLATE])
    state.plugins.view.search_alg = state.plugins.search
    created = [fact for fact in facts if isinstance(fact, TrialCreated)][:1]
    replay(state, None, created, TEMPLATE.make)
    assert state.trials[created[0].trial_id].config == created[0].config
    assert "BasicVariantGenerator" in state.facts.warnings[0]
