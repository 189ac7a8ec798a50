"""Check that after a kill at any commit the next suggestion, decision and saved states are the same.

For every scheduler there is, with random search and with Optuna, on a run with crashes, losses and retries.
"""

from __future__ import annotations

import pytest
from tests.series import step
from tests.simulation.tune import crash_matrix as crash
from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyCosts, FaultyExperiment

from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings, NotInstalled, make_searcher
from muster.sim.tune.trial import FunctionCurve
from muster.trials.model import CheckpointPolicy
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search.space import uniform

SPACE = {"x": uniform(0.0, 1.0), "y": uniform(-1.0, 1.0)}
TERMS = CandidateSettings(max_t=9, seed=3, space=SPACE)
CURVE = FunctionCurve(
    lambda config, t: {"loss": config["x"] + config["y"] ** 2 + 1.0 / t, "size": round(config["y"] * t, 1)},
    seconds=lambda config, t: 60.0 * (1.0 + abs(config["x"])),
)
COSTLY = {"pb2"}  # fits a Gaussian process before most of its decisions, in every replay again
CELLS = [(name, searcher) for name in SCHEDULERS for searcher in ("random", "optuna")]
SEVERAL = ["asha", "asha_promotion", "asha_brackets", "hyperband", "bohb", "median"]
GOALS = {"metric": ["loss", "size"], "mode": ["min", "max"], "constraints": {"size": 0.9}}


def experiment(make_scheduler, searcher="random", **more):
    is_random = searcher == "random"
    asked = {
        "curve": CURVE,
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "num_samples": 10,
        "workers": 3,
        "make_scheduler": make_scheduler,
        "make_search": None if is_random else lambda: make_searcher(searcher, 5),
        "max_concurrent": 0 if is_random else 4,
        "max_t": 9,
        "max_failures": 2,
        "costs": FaultyCosts(start_s=5.0, save_s=2.0, restore_s=1.0),
        "faults": FaultPlan(FaultRates(crashes_per_h=2.0, losses_per_h=1.0, odd_reports=0.1), 7),
        "checkpoint_policy": CheckpointPolicy(frequency=2, num_to_keep=3),
        "ahead": 4 if is_random else None,
    }
    return FaultyExperiment(**{**asked, **more})


def cell(name, searcher):
    contestant = SCHEDULERS[name]
    try:
        contestant.make(TERMS)
        make_searcher(searcher, 5)
    except (NotInstalled, RuntimeError) as missing:
        pytest.skip(str(missing))
    if contestant.needs_no_searcher and searcher != "random":
        pytest.skip(f"{contestant.kind} changes configs itself and refuses trials of a searcher")
    fewer = {"num_samples": 5} if name in COSTLY else {}
    return experiment(lambda: contestant.make(TERMS), searcher, **fewer)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "searcher"), CELLS)
def test_at_every_commit_the_restored_experiment_is_the_one_that_was_not_killed(name, searcher):
    asked = cell(name, searcher)
    commits = crash.recorded(asked, save_every=7)
    assert len(commits) > 30
    assert [told for commit in commits[:: step(3)] for told in crash.differences(asked, commit)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "searcher"), CELLS)
def test_whenever_it_was_killed_it_resumes_to_the_end_with_all_its_trials(name, searcher):
    asked = cell(name, searcher)
    commits = crash.recorded(asked, save_every=11)
    for life in crash.resumed_runs(asked, commits[:: 20 * step(2)]):
        assert life.state.is_finished
        assert len(life.state.trials) == asked.num_samples
        assert {trial.status for trial in life.state.trials.values()} <= {"TERMINATED", "ERROR"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_with_several_objectives_it_is_restored_as_exactly_and_resumes_to_the_end(name):
    asked = experiment(lambda: SCHEDULERS[name].make(TERMS), **GOALS)
    commits = crash.recorded(asked, save_every=7)
    assert len(commits) > 30
    assert b'"version":2' in commits[-1].plugins["scheduler"]
    assert [told for commit in commits[:: step(3)] for told in crash.differences(asked, commit)] == []
    for life in crash.resumed_runs(asked, commits[:: 20 * step(2)]):
        assert len(life.state.trials) == asked.num_samples
        assert {trial.status for trial in life.state.trials.values()} <= {"TERMINATED", "ERROR"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_function"),
    [("fifo", True), ("fifo", False), ("asha_promotion", False), ("hyperband", True), ("pbt", False)],
)
def test_machines_that_will_be_taken_are_restored_as_exactly(name, is_function):
    rates = FaultRates(crashes_per_h=1.0, notices_per_h=15.0, longest_lead_s=240.0, cancelled_notices=0.2)
    asked = experiment(
        lambda: SCHEDULERS[name].make(TERMS),
        costs=FaultyCosts(start_s=5.0, save_s=20.0, restore_s=1.0, stop_s=3.0, is_function=is_function),
        faults=FaultPlan(rates, 7),
        max_failures=9,
    )
    commits = crash.recorded(asked, save_every=7)
    facts = [type(fact).__name__ for commit in commits for fact in commit.store.load().facts]
    assert facts.count("TrialNoticed") > 5
    assert "TrialMoved" in facts or name != "fifo"
    assert [told for commit in commits[:: step(2)] for told in crash.differences(asked, commit)] == []
    for life in crash.resumed_runs(asked, commits[:: 40 * step(2)]):
        assert {trial.status for trial in life.state.trials.values()} == {"TERMINATED"}


def test_two_recordings_of_one_experiment_are_equal():
    one, two = (crash.recorded(cell("asha_promotion", "random")) for _ in range(2))
    assert [(c.plugins, c.seen, c.suggestion) for c in one] == [
        (c.plugins, c.seen, c.suggestion) for c in two
    ]


class Forgetful(ASHAScheduler):
    """Saves everything but its rungs."""

    def save_state(self):
        return b"nothing"

    def restore_state(self, state, trials=None):
        pass


class Moody(ASHAScheduler):
    """Decides by something that is not saved."""

    asked = 0

    def on_trial_result(self, tune_controller, trial, result):
        decision = super().on_trial_result(tune_controller, trial, result)
        Moody.asked += 1
        return self.STOP if Moody.asked % 11 == 0 else decision


@pytest.mark.parametrize("kind", [Forgetful, Moody])
def test_a_scheduler_that_does_not_come_back_as_it_was_is_found_out(kind):
    asked = experiment(lambda: kind(max_t=9, reduction_factor=3), faults=FaultPlan(FaultRates(), 0))
    count, found = crash.matrix(asked)
    assert count > 40
    assert len(found) > 5
    assert any("decisions on" in told or "the core differs" in told for told in found)
