"""Schedulers that compare trials by several objectives, against the order by brute force."""

from __future__ import annotations

import json
import math
import random

import pytest
from tests.mistakes.views import assert_view
from tests.tune.schedulers.by_hand import ByHand
from tests.tune.test_pareto import brute_force

from muster.errors import TuneError
from muster.trials.template import TrialTemplate
from muster.tune.execution.assemble import scheduler_of, search_of
from muster.tune.schedulers import (
    PB2,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from muster.tune.schedulers.resource_allocation import DistributeResourcesToTopJob
from muster.tune.search.space import uniform
from muster.tune.tune_config import TuneConfig

NAN = math.nan
GOALS = {"metric": ["error", "latency_ms"], "mode": ["min", "min"]}
BOUNDS = {"latency_ms": 50}


def made(kind, constraints=None, goals=GOALS, **parameters):
    return scheduler_of(TuneConfig(**goals, scheduler=kind(**parameters), constraints=constraints))


def report(hand, trial, time, error, latency):
    return hand.report(trial, time, 0.0, error=error, latency_ms=latency)


def drawn(stream):
    error = stream.choice([NAN, 0.1, 0.2, stream.random(), stream.random()])
    return error, stream.choice([10, 44, 60, stream.random() * 100])


def expected_order(seen, is_bounded):
    """Return the reports best first, by the rules alone."""
    rows = [(-error, -latency) for error, latency in seen]
    excess = [max(0.0, latency - 50) / 50 if is_bounded else 0.0 for _, latency in seen]
    return brute_force(rows, excess)


@pytest.mark.parametrize("constraints", [None, BOUNDS])
@pytest.mark.parametrize("seed", range(10))
def test_a_trial_stops_unless_it_is_among_the_best_of_its_rung(seed, constraints):
    stream = random.Random(seed)
    hand = ByHand(made(ASHAScheduler, constraints, max_t=9, reduction_factor=3), 60)
    seen = []
    for trial in hand.trials:
        seen.append(drawn(stream))
        place = expected_order(seen, constraints).index(len(seen) - 1)
        continues = (len(seen) == 1 or place <= len(seen) / 3) and not math.isnan(seen[-1][0])
        assert report(hand, trial, 1, *seen[-1]) == ("CONTINUE" if continues else "STOP")


@pytest.mark.parametrize("constraints", [None, BOUNDS])
@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_a_rung_are_promoted_best_first_and_those_that_violate_a_constraint_last(
    seed, constraints
):
    stream = random.Random(seed)
    hand = ByHand(made(ASHAScheduler, constraints, max_t=9, reduction_factor=3, type="promotion"), 40)
    seen, promoted = [], set()
    for place, trial in enumerate(hand.trials):
        seen.append(drawn(stream))
        order = expected_order(seen, constraints)
        feasible = [
            one for one in order if not math.isnan(seen[one][0]) and not (constraints and seen[one][1] > 50)
        ]
        known = feasible or [one for one in order if not math.isnan(seen[one][0])]
        top = [one for one in order[: len(seen) // 3] if one in known]
        decision = report(hand, trial, 1, *seen[-1])
        assert decision == ("CONTINUE" if place in top else "PAUSE")
        if decision == "CONTINUE":
            promoted.add(place)
        due = [one for one in top if one not in promoted]
        chosen = hand.choose()
        if due:
            assert chosen == f"t{due[0]}"
            hand.start(hand.trials[due[0]])
            promoted.add(due[0])
        else:
            assert chosen == f"t{place + 1}" or place == len(hand.trials) - 1


def test_hyperband_keeps_the_first_of_the_order():
    stream = random.Random(4)
    hand = ByHand(made(HyperBandScheduler, BOUNDS, max_t=9, reduction_factor=3), 17)
    members = hand.trials[8:17]  # the bracket that begins with nine
    seen = [drawn(stream) for _ in members]
    for trial, values in zip(members, seen, strict=True):
        report(hand, trial, 1, *values)
    kept = {members[one] for one in expected_order(seen, True)[:3]}
    assert {trial for trial in members if trial.status != "TERMINATED"} == kept


def test_median_stopping_needs_a_trial_that_is_worse_in_every_objective():
    rule = made(MedianStoppingRule, time_attr="training_iteration", grace_period=1, min_samples_required=2)
    hand = ByHand(rule, 6)
    hand.start(*hand.trials)
    for trial in hand.trials[:3]:
        assert report(hand, trial, 1, 0.5, 50) == "CONTINUE"
    assert report(hand, hand.trials[3], 1, 0.9, 10) == "CONTINUE"
    assert report(hand, hand.trials[4], 1, NAN, 10) == "CONTINUE"
    assert report(hand, hand.trials[5], 1, NAN, 90) == "STOP"


KINDS = {
    "stopping": lambda: made(ASHAScheduler, BOUNDS, max_t=9, reduction_factor=3, grace_period=1),
    "promotion": lambda: made(ASHAScheduler, BOUNDS, max_t=9, reduction_factor=3, type="promotion"),
    "hyperband": lambda: made(HyperBandScheduler, BOUNDS, max_t=9, reduction_factor=3),
    "median": lambda: made(MedianStoppingRule, time_attr="training_iteration", grace_period=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_reasons_name_every_objective(kind):
    hand = ByHand(KINDS[kind](), 9)
    values = [
        (0.4, 20),
        (0.3, 44),
        (0.2, 48),
        (0.5, 62),
        (0.1, 49),
        (NAN, 40),
        (0.31, 45),
        (0.9, 46),
        (0.2, 47),
    ]
    lines = []
    for time in (1, 3):
        for trial, one in zip(hand.trials, values, strict=False):
            if trial.status not in ("PENDING", "RUNNING"):
                continue
            report(hand, trial, time, *one)
            lines += [f"{who} {what}: {why}" for who, (what, why) in hand.view.reasons.items()]
            hand.view.reasons.clear()
    lines += hand.scheduler.debug_string().splitlines()
    assert_view(f"schedulers/several_objectives_{kind}", "\n".join(lines))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_restores_to_equal_bytes_also_where_no_metric_is_known(kind):
    hand, stream = ByHand(KINDS[kind](), 12), random.Random(8)
    for trial in hand.trials:
        report(hand, trial, 1, *drawn(stream))
    saved = hand.scheduler.save_state()
    assert json.loads(saved)["version"] == 2
    fresh = type(hand.scheduler)()
    fresh.restore_state(saved)
    assert fresh.save_state() == saved
    assert fresh.metric == GOALS["metric"]


@pytest.mark.parametrize(
    ("metric", "mode"), [(["error"], ["min"]), (["error", "epoch"], ["min", "obs"]), (("error",), ("min",))]
)
def test_one_objective_in_a_list_is_one_objective(metric, mode):
    listed = made(ASHAScheduler, goals={"metric": metric, "mode": mode})
    plain = made(ASHAScheduler, goals={"metric": "error", "mode": "min"})
    assert listed.save_state() == plain.save_state()
    assert (listed.metric, listed.objectives) == ("error", 1)


def test_observed_metrics_take_no_part():
    goals = {"metric": ["epoch", "error", "latency_ms"], "mode": ["obs", "min", "min"]}
    assert made(ASHAScheduler, goals=goals).metric == ["error", "latency_ms"]


def test_the_name_of_a_scheduler_is_enough():
    scheduler = scheduler_of(TuneConfig(**GOALS, scheduler="asha"))
    assert isinstance(scheduler, ASHAScheduler)
    assert scheduler.objectives == 2


def test_a_result_without_an_objective_is_not_compared_and_one_that_is_no_number_is_an_error():
    hand = ByHand(KINDS["stopping"](), 2)
    assert hand.report(hand.trials[0], 1, 0.0, error=0.1) == "CONTINUE"
    assert json.loads(hand.scheduler.save_state())["state"]["rule"]["brackets"] == [[{}, {}, {}]]
    with pytest.raises(TuneError):
        report(hand, hand.trials[1], 1, 0.1, "fast")


def test_a_result_without_a_constrained_key_violates_it():
    hand = ByHand(made(ASHAScheduler, {"size": 3}, max_t=9, reduction_factor=3), 4)
    assert hand.report(hand.trials[0], 1, 0.0, error=0.5, latency_ms=5, size=3) == "CONTINUE"
    assert [report(hand, trial, 1, 0.1, 1) for trial in hand.trials[1:3]] == ["STOP", "STOP"]
    assert hand.report(hand.trials[3], 1, 0.0, error=0.1, latency_ms=1, size=3) == "CONTINUE"


def test_constraints_of_the_experiment_and_of_its_searcher_are_the_same():
    optuna_search = pytest.importorskip("muster.tune.search.optuna.optuna_search")
    pytest.importorskip("optuna")
    template = TrialTemplate(trainable_name="f", param_space={"x": uniform(0.0, 1.0)}, num_samples=2)
    search, _ = search_of(TuneConfig(**GOALS, search_alg="optuna", constraints=BOUNDS), template)
    assert search.searcher._constraints == BOUNDS
    own = optuna_search.OptunaSearch()
    own._constraints = dict(BOUNDS)  # as OptunaSearch(constraints=...) with Optuna 5
    for settings in (
        TuneConfig(**GOALS, search_alg=own, scheduler="asha"),
        TuneConfig(scheduler=ASHAScheduler(**GOALS), constraints=BOUNDS),
    ):
        assert scheduler_of(settings)._constraints == BOUNDS


def test_fifo_and_even_distribution_need_no_metric():
    assert made(FIFOScheduler).metric is not None
    assert made(ResourceChangingScheduler).metric is not None
    inside = made(ResourceChangingScheduler, base_scheduler=ASHAScheduler())
    assert inside.metric == GOALS["metric"]


@pytest.mark.parametrize(
    "scheduler",
    [
        PopulationBasedTraining(hyperparam_mutations={"lr": [0.1, 0.2]}),
        PB2(hyperparam_bounds={"lr": [0.1, 0.2]}),
        ResourceChangingScheduler(resources_allocation_function=DistributeResourcesToTopJob()),
        ResourceChangingScheduler(PopulationBasedTraining(hyperparam_mutations={"lr": [0.1, 0.2]})),
    ],
)
def test_a_scheduler_that_compares_by_one_metric_refuses_several(scheduler):
    with pytest.raises(ValueError, match="one metric"):
        scheduler_of(TuneConfig(**GOALS, scheduler=scheduler))


@pytest.mark.parametrize(
    "goals",
    [
        {"metric": ["a", "b"], "mode": ["min"]},
        {"metric": ["a", "b"], "mode": "min"},
        {"metric": "a", "mode": ["min", "max"]},
        {"metric": ["a", "b"], "mode": ["obs", "obs"]},
        {"metric": ["a", "b"], "mode": ["min", "best"]},
    ],
)
def test_metrics_and_modes_that_do_not_match_are_refused(goals):
    with pytest.raises(ValueError):
        ASHAScheduler(**goals)
    with pytest.raises(ValueError):
        made(ASHAScheduler, goals=goals)
