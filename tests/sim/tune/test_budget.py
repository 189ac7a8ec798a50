"""Budgets and deadlines in virtual time: random experiments with faults never spend or take more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.mistakes.views import assert_line
from tests.series import length
from tests.simulation.tune import crash_matrix
from tests.simulation.tune.chaos import MOST_STEPS, random_experiment
from tests.support.memory_trial_store import MemoryTrialStore

from muster.base.rng import Seed
from muster.sim.tune.candidates import SCHEDULERS
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Curve
from muster.trials.spend import HOUR_S, UNSEEN_S, total_cost
from muster.trials.template import SUSPEND_GRACE_S, Limits
from muster.tune.execution.between_steps import ExperimentSaver
from muster.tune.search.space import uniform

SEEDS = length(200, 1000)
NAMES = [name for name in SCHEDULERS if name not in ("pb2", "bohb")]  # these think for seconds
PRICE = 3.6  # of all workers, an hour


def limited(seed):
    """A random experiment, what it would cost without a limit, and the same with one."""
    draw = Seed(seed).derive("test.budget")
    name = draw.choice(NAMES)
    free = replace(random_experiment(name, seed), price_per_hour=PRICE)
    whole = free.begin().run(MOST_STEPS)
    usd, seconds = whole.state.spend.spent(whole.clock.now()), whole.clock.monotonic()
    share = draw.uniform(0.02, 1.3)
    if draw.random() < 0.6:
        return whole, replace(free, limits=Limits(cost_budget=usd * share + 1e-9))
    return whole, replace(free, limits=Limits(deadline=seconds * share + 1e-9))


def over(run):
    """How far a run went beyond its limits; in $ and in seconds."""
    limits, now = run.experiment.limits, run.clock.now()
    usd = 0.0 if limits.cost_budget is None else run.state.spend.spent(now) - limits.cost_budget
    return usd, 0.0 if limits.deadline is None else now - limits.deadline


def stopping_s(run):
    """How long a trial takes to stop: a small budget keeps less for that."""
    return SUSPEND_GRACE_S + run.experiment.costs.stop_s


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_random_experiment_goes_beyond_its_limits_by_more_than_a_stop():
    wrong, ended, whole = [], 0, 0
    for seed in range(SEEDS):
        free, experiment = limited(seed)
        run = experiment.begin().run(MOST_STEPS)
        usd, late_s = over(run)
        if usd > PRICE * stopping_s(run) / HOUR_S or late_s > stopping_s(run) or not run.state.is_finished:
            wrong.append((seed, usd, late_s, run.state.ended_by))
        ended += bool(run.state.ended_by)
        whole += not run.state.ended_by
        if run.state.ended_by:
            assert not run.state.index.with_process
            assert all(trial.status != "RUNNING" for trial in run.state.trials.values())
        else:
            assert len(run.state.trials) == len(free.state.trials)
    assert wrong == []
    assert ended > SEEDS / 3
    assert whole > SEEDS / 20


def a_run(**given):
    """Eight trials of nine steps of ten seconds, on two workers that cost $3.6 an hour together."""
    asked = {
        "curve": lambda config, step: {"loss": config["x"] / step},
        "space": {"x": uniform(0.0, 1.0)},
        "metric": "loss",
        "mode": "min",
        "num_samples": 8,
        "workers": 2,
        "max_t": 9,
        "costs": Costs(start_s=1.0, save_s=2.0, stop_s=0.5),
        "price_per_hour": PRICE,
        **given,
    }
    if "curve" not in given:
        asked["curve"] = TenSeconds()
    return SimulatedExperiment(**asked)


class TenSeconds(Curve):
    def seconds(self, config, iteration):
        return 10.0

    def metrics(self, config, iteration):
        return {"loss": config["x"] / iteration}


def resumed(run, **changes):
    """The run that a new driver continues, with other limits perhaps."""
    again = replace(run.experiment, **changes).begin(run.store)
    again.engine.world.advance(run.clock.now())
    saver = ExperimentSaver(again.state, store=again.store, clock=again.clock)
    saver.restore(again.store.load(), again.template.make)
    return again


def ended(limits, **given):
    run = a_run(limits=limits, **given).begin(MemoryTrialStore(root="/simulated"))
    saver = ExperimentSaver(run.state, store=run.store, clock=run.clock)
    run.controller._saver = saver
    run.controller.save()
    run.run()
    run.controller.save(is_last=True)
    return run


def test_a_trial_costs_its_share_of_the_workers_for_as_long_as_it_holds_one():
    run = a_run(num_samples=1).run()
    (trial,) = run.state.trials.values()
    held_s = 1.0 + 9 * 10.0 + 0.5
    assert trial.cost_usd == pytest.approx(held_s * PRICE / 2 / HOUR_S)
    assert trial.last_result["cost_usd"] == pytest.approx((1.0 + 9 * 10.0) * PRICE / 2 / HOUR_S)


def test_rows_have_no_cost_when_no_price_is_known():
    run = a_run(price_per_hour=None).run()
    assert not any("cost_usd" in trial.last_result for trial in run.state.trials.values())
    assert {trial.cost_usd for trial in run.state.trials.values()} == {None}


def test_a_budget_ends_the_experiment_with_saved_trials_that_are_not_failed():
    run = ended(Limits(cost_budget=0.25))
    trials = list(run.state.trials.values())
    assert run.state.ended_by == "budget"
    assert run.state.spend.spent(run.clock.now()) <= 0.25
    assert {trial.status for trial in trials} == {"TERMINATED", "PENDING"}
    begun = [trial for trial in trials if trial.status == "PENDING" and trial.last_result_time > 0]
    for trial in begun:
        assert trial.newest.metrics["training_iteration"] == trial.last_result["training_iteration"]


def test_a_trial_that_cannot_finish_is_not_started():
    run = ended(Limits(cost_budget=2 * 91.5 * PRICE / 2 / HOUR_S + 0.02))
    assert sorted(trial.last_result.get("training_iteration", 0) for trial in run.state.trials.values()) == [
        *[0] * 6,
        9,
        9,
    ]


def test_with_more_money_an_experiment_goes_on_where_it_was_and_costs_add_up():
    run = ended(Limits(cost_budget=0.25))
    before = run.state.spend.spent(run.clock.now())
    more = resumed(run, limits=Limits(cost_budget=2.0))
    assert more.state.spend.spent(more.clock.now()) == pytest.approx(before, abs=1e-12)
    assert {t.trial_id: t.cost_usd for t in more.state.trials.values()} == {
        t.trial_id: t.cost_usd for t in run.state.trials.values()
    }
    more.run()
    assert more.state.ended_by == ""
    assert {trial.last_result["training_iteration"] for trial in more.state.trials.values()} == {9}
    cost = total_cost(trial.cost_usd for trial in more.state.trials.values())
    assert cost == pytest.approx(8 * 91.5 * PRICE / 2 / HOUR_S, rel=0.05)


def test_without_more_money_only_what_is_left_is_spent():
    run = ended(Limits(cost_budget=0.25))
    again = resumed(run).run()
    assert again.state.ended_by == "budget"
    assert again.state.spend.spent(again.clock.now()) <= 0.25


def test_a_deadline_ends_the_experiment_in_time_and_needs_no_price():
    run = ended(Limits(deadline=130.0), price_per_hour=None)
    assert run.state.ended_by == "deadline"
    assert run.clock.now() <= 130.0
    assert {trial.status for trial in run.state.trials.values()} == {"TERMINATED", "PENDING"}


def test_a_deadline_that_cannot_be_met_is_told_early_with_numbers(caplog):
    a_run(limits=Limits(deadline=200.0)).run()
    (warning,) = caplog.messages
    assert_line("sim", "deadline too early", warning)


def test_a_budget_that_will_not_do_is_told_early_with_numbers(caplog):
    a_run(limits=Limits(cost_budget=0.25)).run()
    (warning,) = caplog.messages
    assert_line("sim", "budget too low", warning)


def killed(at_s):
    """A run whose driver is killed while it waits for its trials: the store has what was flushed by then."""
    run = a_run().begin(MemoryTrialStore(root="/simulated"))
    run.controller._saver = ExperimentSaver(run.state, store=run.store, clock=run.clock)
    run.controller.save()
    while run.engine.world.monotonic() < at_s:
        run.engine.timeline.wake_at = run.engine.world.monotonic() + 0.1  # as a driver, which polls
        run.controller.step(0.0)
    return run


def test_after_a_kill_no_cost_is_missing_and_little_is_charged_too_much():
    run = killed(at_s=37.3)
    spent = run.state.spend.spent(run.clock.now())
    again = resumed(run)
    over_s = (again.state.spend.spent(again.clock.now()) - spent) / (PRICE / HOUR_S)
    assert 0.0 <= over_s <= UNSEEN_S + 1e-6


def test_a_second_kill_before_anything_is_saved_charges_nothing_twice():
    run = killed(at_s=37.3)
    once = resumed(run)
    once.controller._flush_all()
    cost = {trial.trial_id: trial.cost_usd for trial in once.state.trials.values()}
    twice = resumed(once)
    assert {trial.trial_id: trial.cost_usd for trial in twice.state.trials.values()} == cost


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fifo", "asha", "hyperband", "pbt"])
def test_at_every_commit_of_a_run_with_a_budget_the_restored_experiment_stands_where_it_stood(name):
    checked = 0
    for seed in range(length(6, 30)):
        _, experiment = limited(seed)
        experiment = replace(random_experiment(name, seed), price_per_hour=PRICE, limits=experiment.limits)
        for commit in crash_matrix.recorded(experiment, save_every=5):
            state = crash_matrix._restored(experiment, commit.store)
            assert timeless(crash_matrix._seen(state)) == timeless(commit.seen), (seed, commit.number)
            checked += 1
    assert checked > 50


def timeless(seen):
    return seen.rpartition("'at':")[0]


@pytest.mark.slow
def test_a_killed_driver_is_resumed_with_more_money_and_every_trial_ends():
    for seed in range(length(10, 60)):
        free, experiment = limited(seed)
        commits = crash_matrix.recorded(experiment)
        runs = crash_matrix.resumed_runs(
            replace(experiment, limits=Limits()), commits[:: max(1, len(commits) // 4)]
        )
        for run in runs:
            assert run.state.is_finished
            assert len(run.state.trials) == len(free.state.trials)
