"""Check that the problems follow their formulas, and repeat themselves."""

from __future__ import annotations

import math
import statistics

import pytest

from muster.sim.tune import problems
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import MAX_T, PROBLEMS
from muster.trials.template import TrialTemplate
from muster.tune.search.basic_variant import BasicVariantGenerator


def configs(problem, count, seed=0):
    search = BasicVariantGenerator(random_state=seed, id_prefix="t")
    template = TrialTemplate(trainable_name="f", param_space=problem.space(), num_samples=count)
    search.add_configurations([template])
    return [search.next_trial().config for _ in range(count)]


def test_the_test_functions_have_their_known_minima():
    assert problems.branin(-math.pi, 12.275) == pytest.approx(problems.BRANIN_MIN)
    assert problems.branin(math.pi, 2.275) == pytest.approx(problems.BRANIN_MIN)
    best = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    assert problems.hartmann6(best) == pytest.approx(problems.HARTMANN6_MIN, abs=1e-6)
    assert problems.rosenbrock([1.0] * 4) == 0.0
    assert problems.rosenbrock([0.0, 0.0]) == 1.0
    assert problems.ackley([0.0] * 4) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_config_beats_the_optimum_and_training_helps(name):
    problem = PROBLEMS[name]
    tried = configs(problem, 300)
    ends = [problem.loss(config, MAX_T) for config in tried]
    assert min(ends) >= problem.optimum - 1e-9
    starts = [problem.loss(config, 1.0) for config in tried]
    assert statistics.median(ends) < statistics.median(starts)
    assert all(0.0 < problem.seconds(config) < 1000.0 for config in tried)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_trial_that_repeats_an_iteration_reports_the_same(name):
    problem = PROBLEMS[name]
    (config,) = configs(problem, 1)
    one, two, other = problem.curve(1), problem.curve(1), problem.curve(2)
    told = [one.metrics(config, t) for t in (1, 5, 81)]
    assert [two.metrics(config, t) for t in (81, 5, 1)][::-1] == told
    assert (told[0] != other.metrics(config, 1)) == (problem.noise > 0)


def test_noise_is_as_large_as_documented():
    problem = PROBLEMS["noisy"]
    curve = problem.curve(3)
    drawn = [
        curve.metrics(config, 9)["loss"] - problem.loss(config, 9.0) for config in configs(problem, 2000)
    ]
    assert statistics.fmean(drawn) == pytest.approx(0.0, abs=0.005)
    assert statistics.pstdev(drawn) == pytest.approx(0.05, rel=0.1)


def test_curves_cross():
    problem = PROBLEMS["crossing"]
    fast, slow = {"lr": 0.1, "width": 0.6}, {"lr": 0.0001, "width": 0.6}
    assert problem.loss(fast, 3.0) < problem.loss(slow, 3.0)
    assert problem.loss(fast, 81.0) > problem.loss(slow, 81.0)


def test_late_bloomers_show_nothing_early():
    problem = PROBLEMS["late_bloomers"]
    good, poor = {"lr": 0.01, "depth": 12}, {"lr": 1.0, "depth": 2}
    assert problem.loss(good, 27.0) > 0.9 > problem.loss(poor, 27.0)
    assert problem.loss(good, 81.0) < 0.1


def test_only_the_parameter_of_the_chosen_optimizer_counts():
    problem = PROBLEMS["conditional"]
    config = {"lr": 0.01, "optimizer": "sgd", "momentum": 0.5, "beta": 0.9, "layers": 3}
    same = problem.loss({**config, "beta": 0.99}, 9.0)
    assert problem.loss(config, 9.0) == same != problem.loss({**config, "momentum": 0.9}, 9.0)


def test_there_are_at_least_eight_and_each_is_described():
    assert len(PROBLEMS) >= 8
    assert all(problem.about and problem.formula for problem in PROBLEMS.values())


@pytest.mark.slow
def test_thousands_of_trials_in_one_experiment_are_a_matter_of_seconds():
    from muster.tune.schedulers import ASHAScheduler

    problem = PROBLEMS["power_law"]
    run = SimulatedExperiment(
        curve=problem.curve(),
        space=problem.space(),
        metric="loss",
        mode="min",
        num_samples=3_000,
        workers=256,
        make_scheduler=lambda: ASHAScheduler(max_t=81, reduction_factor=3),
        max_t=81,
    ).run()
    assert len(run.state.trials) == 3_000
    assert run.history.best.value < problem.optimum + 0.005
