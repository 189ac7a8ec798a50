"""Machines that are announced to be taken: in virtual time no step is lost that could have been saved."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.series import length
from tests.simulation.tune.chaos import RandomCurve
from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyCosts, FaultyExperiment
from tests.support.memory_trial_store import MemoryTrialStore

from muster.session.session import PreemptionInfo
from muster.sim.tune.trial import FunctionCurve
from muster.trials.events import CheckpointSaved, StartTrial, TrialMoved, TrialNoticed, TrialReported
from muster.trials.model import CheckpointPolicy
from muster.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, HyperBandScheduler
from muster.tune.search.space import uniform

SAVE_S = 5.0
SCHEDULERS = (FIFOScheduler, AsyncHyperBandScheduler, HyperBandScheduler)


class Witness:
    """Stands between controller and engine, and knows for each trial the last step that fitted."""

    def __init__(self, run):
        self.engine, self.clock = run.engine, run.clock
        self.announced, self.fitted, self.problems, self.counts = {}, {}, [], Counter()
        run.controller._engine = self

    def capacity(self):
        return self.engine.capacity()

    def close(self):
        self.engine.close()

    def poll(self, timeout_s):
        events = self.engine.poll(timeout_s)
        for event in events:
            self.look(event)
        return events

    def look(self, event):
        trial_id = getattr(event, "trial_id", "")
        if isinstance(event, TrialNoticed):
            self.counts["cancelled" if event.info is None else "noticed"] += 1
            self.announced[trial_id] = event.info
        info = self.announced.get(trial_id)
        if isinstance(event, TrialReported) and info is not None:
            needs_s = 0.0 if event.checkpoint is not None else SAVE_S
            asks = not self.engine._costs.is_function or event.checkpoint is not None
            if asks and event.at + needs_s <= info.deadline:
                self.fitted[trial_id] = event.result["training_iteration"]
                self.counts["fitted"] += 1

    def submit(self, command):
        if isinstance(command, StartTrial):
            done = command.checkpoint.metrics["training_iteration"] if command.checkpoint else 0
            fitted = self.fitted.pop(command.trial_id, 0)
            if done < fitted:
                self.problems.append(f"{command.trial_id}: starts after step {done}, step {fitted} fitted")
            self.announced.pop(command.trial_id, None)
        self.engine.submit(command)


def experiment(seed, **changes):
    given = {
        "curve": RandomCurve(early=0.3, max_t=9, is_uniform=seed % 2 == 0),
        "space": {"x": uniform(0.0, 1.0), "y": uniform(0.0, 1.0)},
        "metric": "loss",
        "mode": "min",
        "num_samples": 6,
        "workers": 3,
        "make_scheduler": lambda: SCHEDULERS[seed % 3](max_t=9) if seed % 3 else FIFOScheduler(),
        "max_t": 9,
        "checkpoint_policy": CheckpointPolicy(frequency=(0, 3)[seed % 5 == 0], num_to_keep=1),
        "costs": FaultyCosts(
            start_s=3.0, restore_s=2.0, save_s=SAVE_S, stop_s=1.0, is_function=seed % 4 == 0
        ),
        "faults": FaultPlan(
            FaultRates(notices_per_h=20.0, longest_lead_s=150.0, cancelled_notices=0.2, stragglers=0.2), seed
        ),
        "seed": seed,
    }
    return FaultyExperiment(**{**given, **changes})


@pytest.mark.slow
def test_no_step_that_fitted_is_lost_and_no_trial_counts_as_failed():
    counts, problems = Counter(), []
    for seed in range(length(60, 1000)):
        run = experiment(seed).begin()
        witness = Witness(run)
        run.run()
        counts += witness.counts
        trials = run.state.trials.values()
        problems += [f"seed {seed}: {text}" for text in witness.problems]
        problems += [f"seed {seed}: {t} {t.status}" for t in trials if t.num_failures or t.status == "ERROR"]
        rows = {str(t): (t.num_rows, t.last_result.get("training_iteration", 0)) for t in trials}
        problems += [f"seed {seed}: {name}: {pair} rows" for name, pair in rows.items() if len({*pair}) > 1]
    assert problems == []
    assert min(counts[name] for name in ("noticed", "cancelled", "fitted")) > 20


def one_trial(script, *, steps=6, seconds=60.0, **costs):
    """One trial of an hour at most; `script` is called after each poll with engine, store and time."""
    store = MemoryTrialStore()
    curve = FunctionCurve(lambda config, t: {"loss": 1.0 / t}, seconds=seconds)
    made = experiment(
        0,
        curve=curve,
        num_samples=1,
        max_t=steps,
        faults=FaultPlan(FaultRates(), 0),
        costs=FaultyCosts(**{"save_s": SAVE_S, **costs}),
        checkpoint_policy=CheckpointPolicy(),
        make_scheduler=FIFOScheduler,
    )
    run = made.begin(store)
    while run.step():
        script(run.engine, run.clock.now())
    (trial,) = run.state.trials.values()
    facts = [(type(fact).__name__, fact.at) for fact in store.load().facts]
    return trial, facts


def told_once(at, *infos):
    """Announce each of `infos` to the only trial, and to an unknown one, at the first event after `at`."""
    left = list(infos)

    def script(engine, now):
        while left and now >= at:
            engine.notice("unknown", left[0])
            engine.notice("sim_00000", left.pop(0))

    return script


def info(deadline):
    return PreemptionInfo(deadline, "interruption", "a test", "n1")


def names(facts):
    """Names of facts, without the reasons that are written for readers."""
    return [name.removeprefix("Trial") for name, _ in facts if name != "TrialDecided"]


def test_a_class_is_saved_at_its_next_result_and_goes_on_elsewhere():
    trial, facts = one_trial(told_once(60.0, info(300.0)))
    life = ["Started", "Reported", "Noticed", "Reported", "CheckpointSaved", "Exited", "Admitted", "Started"]
    assert names(facts)[3 : 3 + len(life)] == life
    assert (trial.num_rows, trial.num_failures, trial.last_result["training_iteration"]) == (6, 0, 6)


def test_a_function_is_moved_after_it_has_reported_a_checkpoint():
    trial, facts = one_trial(told_once(60.0, info(300.0)), is_function=True)
    life = ["Started", "Reported", "Noticed", "Reported", "Exited", "Admitted", "Started"]
    assert names(facts)[3 : 3 + len(life)] == life
    assert (trial.num_rows, trial.num_failures) == (6, 0)


def test_a_trial_that_can_finish_in_time_goes_on():
    _, facts = one_trial(told_once(240.0, info(500.0)))
    assert names(facts)[-4:] == ["Noticed", "Reported", "Reported", "Exited"]


def test_a_trial_whose_time_is_over_is_moved_by_a_fact():
    trial, facts = one_trial(told_once(60.0, info(90.0)), seconds=60.0)
    assert names(facts)[5:9] == ["Noticed", "Moved", "Exited", "Admitted"]
    assert [at for name, at in facts if name == TrialMoved.__name__] == [92.0]
    assert (trial.num_rows, trial.num_failures) == (6, 0)


def test_no_checkpoint_is_begun_that_cannot_end_in_time():
    """The first save, of a duration unknown before, took too long; the second is not tried."""

    left_s = {60.0: 940.0, 300.0: 50.0}

    def script(engine, now):
        if now in left_s:
            engine.notice("sim_00000", info(now + left_s[now]))

    trial, facts = one_trial(script, save_s=200.0, seconds=20.0, steps=100)
    saved_at = [at for name, at in facts if name == CheckpointSaved.__name__]
    moved_at = [at for name, at in facts if name == TrialMoved.__name__]
    assert (saved_at, moved_at, trial.save_s) == ([280.0], [352.0], 200.0)
    assert (trial.num_rows, trial.num_failures) == (100, 0)


def test_a_notice_that_is_taken_back_changes_nothing():
    _, facts = one_trial(told_once(60.0, info(300.0), info(300.0), None))
    assert names(facts)[3:] == ["Started", "Reported", "Noticed", "Noticed", *["Reported"] * 5, "Exited"]
