"""Check what a tuner expects of the cluster: the rest of its trials, and the work that will come."""

from __future__ import annotations

import pytest

from muster.base.forecast import fault_of
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import FunctionCurve
from muster.trials.forecast import ForecastInput, forecast_of
from muster.trials.template import Limits
from muster.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from muster.tune.search.space import uniform


def begun(until_s, *, make_scheduler=lambda: None, max_t=10, workers=2, num_samples=4, **more):
    """An experiment with steps of 10 s, after so many seconds."""
    curve = FunctionCurve(lambda config, t: {"loss": config["x"] / t}, seconds=10.0)
    run = SimulatedExperiment(
        curve=more.pop("curve", curve),
        space={"x": uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        num_samples=num_samples,
        workers=workers,
        make_scheduler=make_scheduler,
        max_t=max_t,
        costs=Costs(checkpoint_every=2),
        **more,
    ).begin()
    run.step()  # admits
    while (run.clock.monotonic() < until_s or not run.state.index.live) and run.step():
        pass
    return run


def forecast(run, **more):
    at = run.clock.now()
    made = forecast_of(
        run.state, ForecastInput(experiment="e", at=at, node_of=lambda trial_id: f"n-{trial_id}", **more)
    )
    assert fault_of(made) == ""
    return made


def coming(made):
    return [(work.count, work.start_s, work.each_s) for work in made.coming]


def test_trials_that_run_to_their_end_have_a_known_rest_and_those_that_wait_a_known_length():
    made = forecast(begun(30.0))
    assert [(trial.rest_s, trial.node_id) for trial in made.trials] == [
        (70.0, "n-sim_00000"),
        (70.0, "n-sim_00001"),
    ]
    assert (coming(made), made.coming[0].end_s, made.is_complete) == ([(2, 0.0, 100.0)], 100.0, True)


def test_before_the_first_result_nothing_is_known_of_times():
    run = begun(0.0)
    run.step()
    made = forecast(run)
    assert ([trial.rest_s for trial in made.trials], coming(made)) == ([None, None], [(2, 0.0, None)])
    assert (made.is_complete, made.done) == (True, None)


def test_work_since_the_checkpoint_is_what_a_move_would_repeat():
    run = begun(30.0)
    (first, _) = forecast(run, restart_s=7.0).trials
    assert (first.unsaved_s, first.restart_s, first.is_movable) == (10.0, 7.0, True)
    (first, _) = forecast(run, unsaved_s=lambda trial_id: 3.0).trials
    assert first.unsaved_s == 3.0


def test_a_trial_that_was_moved_twice_is_not_movable_any_more():
    run = begun(30.0)
    made = forecast(run, moves={"sim_00000": 1, "sim_00001": 2}.__getitem__)
    assert [trial.is_movable for trial in made.trials] == [True, False]


def test_a_rung_ends_most_trials_and_the_rest_is_what_is_expected():
    run = begun(10.0, make_scheduler=lambda: ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3))
    (first, _) = forecast(run).trials
    assert first.rest_s == pytest.approx(20.0 + 60.0 / 3)
    fresh = forecast(run).coming[0]
    assert fresh.each_s == pytest.approx(50.0)


def test_trials_still_to_be_suggested_are_counted_when_the_searcher_has_an_end():
    made = forecast(begun(30.0, num_samples=40, ahead=3))
    assert (sum(work.count for work in made.coming), made.is_complete) == (38, True)
    endless = forecast(begun(30.0, num_samples=-1, ahead=3))
    assert (sum(work.count for work in endless.coming), endless.is_complete) == (3, False)


def test_a_barrier_gives_the_nodes_back_and_its_rung_comes_when_the_last_one_is_there():
    run = begun(
        10.0,
        make_scheduler=lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
        max_t=None,
        workers=20,
        num_samples=17,
    )
    made = forecast(run)
    rungs = [(work.count, work.start_s, work.each_s) for work in made.coming]
    assert {trial.rest_s for trial in made.trials} == {80.0, 20.0}  # its bracket's next milestone
    assert (2, 20.0, 60.0) in rungs  # of the five that train to 3
    assert made.is_complete


def test_a_synchronous_population_comes_again_and_again():
    mutations = {"x": uniform(0.0, 1.0)}
    run = begun(
        10.0,
        make_scheduler=lambda: PopulationBasedTraining(
            "training_iteration", perturbation_interval=4, hyperparam_mutations=mutations, synch=True
        ),
        workers=4,
    )
    made = forecast(run)
    assert [trial.rest_s for trial in made.trials] == [30.0] * 4
    assert coming(made) == [(4, 30.0, 40.0)]


def test_without_milestones_of_the_scheduler_the_rest_is_not_known():
    made = forecast(begun(30.0, make_scheduler=lambda: MedianStoppingRule(grace_period=50)))
    assert [trial.rest_s for trial in made.trials] == [None, None]


def test_the_share_that_is_done_counts_everything_that_is_known():
    made = forecast(begun(30.0), spent_s=60.0, begun_at=1.0)
    assert (made.done, made.begun_at) == (60.0 / 400.0, 1.0)


def test_the_best_of_those_that_came_equally_far_are_leaders():
    made = forecast(begun(30.0, workers=6, num_samples=6))
    values = {t.trial_id: t.is_leader for t in made.trials}
    assert sum(values.values()) == 2


def test_an_experiment_that_is_over_expects_nothing():
    run = begun(1e9)
    made = forecast(run)
    assert (made.trials, made.coming, made.is_complete, made.done) == ((), (), True, 1.0)


def test_with_a_deadline_those_that_wait_say_how_long_they_may_run():
    """ASHA: a third continues from each rung, and one trial to the end; without one nobody asks."""
    made = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    run = begun(10.0, make_scheduler=lambda: made, max_t=9)
    (work,) = forecast(run, deadline=1000.0).coming
    assert (work.each_s, work.most_s) == (23.0, 90.0)
    assert forecast(run).coming[0].most_s is None


def test_trials_that_end_by_themselves_are_judged_by_those_that_have_ended_where_limits_are_held():
    """Two of four have ended after 50 s; nothing says so beforehand."""
    limits = {"limits": Limits(deadline=10_000.0)}
    run = begun(60.0, max_t=None, curve=FunctionCurve(_loss, seconds=10.0, iterations=5), **limits)
    made = forecast(run, deadline=10_000.0)
    assert [trial.rest_s for trial in made.trials] == [40.0, 40.0]
    free = begun(60.0, max_t=None, curve=FunctionCurve(_loss, seconds=10.0, iterations=5))
    assert [trial.rest_s for trial in forecast(free).trials] == [None, None]


def _loss(config, t):
    return {"loss": config["x"] / t}
