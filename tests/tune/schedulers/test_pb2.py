"""PB2: the bounds, the model, and a population that is led by it."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from tests.tune.schedulers.pbt_world import Chaos, World

from muster.errors import TuneError
from muster.trials.model import Trial
from muster.trials.plugins import ControllerView
from muster.trials.restore import replay, snapshot
from muster.trials.trial_index import TrialIndex
from muster.tune.schedulers import PB2
from muster.tune.schedulers import pb2_model as model

LRS = [0.1, 0.2, 0.5, 0.9]


def pb2(**changes):
    asked = {
        "time_attr": "training_iteration",
        "metric": "score",
        "mode": "max",
        "perturbation_interval": 4,
        "hyperparam_bounds": {"lr": [0.1, 1.0]},
        "seed": 1,
        **changes,
    }
    return PB2(**asked)


@pytest.mark.conformance("C-176")
@pytest.mark.parametrize(
    ("bounds", "kind", "text"),
    [
        (None, TuneError, "nothing to change"),
        ({}, TuneError, "nothing to change"),
        ({"lr": [1, 0]}, ValueError, r"so \[0, 1\]"),
        ({"lr": 1}, ValueError, "'lr' is 1; it must be"),
        ({"a": {"lr": [1]}}, ValueError, r"'a/lr' is \[1\]"),
        ({"lr": ["x", "y"]}, ValueError, "two numbers"),
        ({"lr": [0, float("inf")]}, ValueError, "two numbers"),
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds, kind, text):
    with pytest.raises(kind, match=text):
        pb2(hyperparam_bounds=bounds)


@pytest.mark.conformance("C-176")
def test_missing_values_are_drawn_within_their_bounds():
    view = ControllerView(TrialIndex({"CPU": 1}), None)
    scheduler = pb2(hyperparam_bounds={"lr": [2, 3], "deep": {"n": [5, 6]}})
    for number in range(20):
        trial = Trial("f", trial_id=f"t{number}", config={"deep": {"other": 1}})
        scheduler.on_trial_add(view, trial)
        assert 2 <= trial.config["lr"] <= 3
        assert 5 <= trial.config["deep"]["n"] <= 6
        assert trial.config["deep"]["other"] == 1


def histories(scheduler, nested):
    """Two trials with some past; the configuration the worse one is given."""
    view = ControllerView(TrialIndex({"CPU": 2}), None)
    trials = []
    for number, (lr, n) in enumerate([(0.2, 3), (0.8, 7)]):
        config = {"lr": lr, "deep": {"n": n}} if nested else {"lr": lr, "n": n}
        trials.append(Trial("f", trial_id=f"t{number}", config=config))
        scheduler.on_trial_add(view, trials[-1])
        for time in range(4, 20, 4):
            scheduler._learn(trials[-1], float(time), lr * time)
    return scheduler._new_config(trials[0], trials[1])


@pytest.mark.conformance("C-176")
def test_nested_and_flat_bounds_give_the_same_values_of_the_types_they_had():
    flat = histories(pb2(hyperparam_bounds={"lr": [0.0, 1.0], "n": [1, 9]}), nested=False)
    nested = histories(pb2(hyperparam_bounds={"lr": [0.0, 1.0], "deep": {"n": [1, 9]}}), nested=True)
    assert nested == {"lr": flat["lr"], "deep": {"n": flat["n"]}}
    assert 0 <= flat["lr"] <= 1
    assert type(flat["n"]) is int
    assert 1 <= flat["n"] <= 9


def test_without_data_of_the_copied_trial_its_values_are_kept_and_the_users_function_is_applied():
    scheduler = pb2(custom_explore_fn=lambda config: {**config, "mine": True})
    donor = Trial("f", trial_id="d", config={"lr": 0.4, "x": 1})
    assert scheduler._new_config(donor, donor) == {"lr": 0.4, "x": 1, "mine": True}


@pytest.mark.conformance("C-176")
def test_it_can_be_pickled_with_a_lambda():
    scheduler = pickle.loads(cloudpickle.dumps(pb2(custom_explore_fn=lambda config: config)))
    assert scheduler.save_state() == pb2().save_state()


@pytest.mark.parametrize("synch", [True, False])
def test_a_population_is_led_to_larger_steps_and_stays_within_the_bounds(synch):
    seen = World(pb2(synch=synch), LRS, end=40, cpus=4, chaos=Chaos(slowest_save=1)).run()
    assert {trial.status for trial in seen.trials} == {"TERMINATED"}
    assert all(0.1 <= config["lr"] <= 1.0 for _, _, config in seen.starts)
    changed = [config["lr"] for _, _, config in seen.starts if config["lr"] not in LRS]
    assert max(changed) > 0.9  # the more, the better: it finds that out
    assert min(trial.last_result["score"] for trial in seen.trials) > 40 * 0.5


def test_at_every_step_the_restored_population_stands_where_the_running_one_stood():
    original = World(pb2(), LRS, end=17, chaos=Chaos(slowest_step=2, slowest_save=1), cpus=3)
    moments = []
    while original.step():
        moments.append(original.moment())
    assert original.state.plugins.scheduler._points
    for position in range(0, len(moments), 7):
        count, seen, search, scheduler = moments[position]
        start, picture_then, search_then, scheduler_then = moments[position // 2]
        state = original.fresh(pb2())
        state.plugins.search.restore_state(search_then)
        state.plugins.scheduler.restore_state(scheduler_then)
        replay(state, picture_then, original.facts[start:count], original.template.make)
        assert {**snapshot(state), "iteration": 0} == {**seen, "iteration": 0}
        assert (state.plugins.search.save_state(), state.plugins.scheduler.save_state()) == (
            search,
            scheduler,
        )


def test_scores_that_are_no_numbers_are_not_learned_from():
    scheduler = pb2()
    trial = Trial("f", trial_id="a", config={"lr": 0.5})
    for time, score in ((4.0, 1.0), (8.0, float("nan")), (12.0, float("inf")), (12.0, 2.0), (12.0, 3.0)):
        scheduler._learn(trial, time, score)
    assert scheduler._points == [[12.0, 1.0, 0.5, 0.125]]


# The model


def test_the_kernel_forgets_with_time_and_falls_with_distance():
    kernel = model.Kernel(variance=2.0, lengthscale=0.5, noise=0.0, epsilon=0.25)
    one, other = np.array([[0.0, 0.0, 0.0]]), np.array([[1.0, 0.5, 0.0]])
    assert kernel.between(one, other)[0, 0] == pytest.approx(2.0 * np.exp(-0.25 / 0.5) * 0.75**0.5)
    assert kernel.between(one, one)[0, 0] == 2.0


def test_the_posterior_is_that_of_the_textbook():
    rng = np.random.default_rng(0)
    inputs, targets, at = rng.uniform(size=(12, 4)), rng.normal(size=12), rng.uniform(size=4)
    kernel = model.Kernel(1.3, 0.4, 0.01, 0.1)
    posterior = model.Posterior(kernel, inputs, targets)
    factor = cho_factor(kernel.of(inputs))
    near = kernel.between(at[None, :], inputs)[0]
    mean, variance = (lambda x, which=which: posterior.mean_and_variance(x)[which] for which in (0, 1))
    assert mean(at)[0] == pytest.approx(near @ cho_solve(factor, targets))
    assert variance(at)[0] == pytest.approx(1.3 - near @ cho_solve(factor, near))
    for what in (mean, variance):
        for column in range(1, 4):
            step = np.eye(4)[column] * 1e-6
            slope = (what(at + step)[0] - what(at - step)[0]) / 2e-6
            assert what(at)[1][column - 1] == pytest.approx(slope, rel=1e-3)


def test_pending_points_narrow_the_variance_and_leave_the_mean():
    rng = np.random.default_rng(4)
    inputs, targets, pending = rng.uniform(size=(12, 4)), rng.normal(size=12), rng.uniform(size=(3, 4))
    kernel, at = model.Kernel(1.3, 0.4, 0.01, 0.1), rng.uniform(size=4)
    both = model.Posterior(kernel, inputs, targets, pending)
    known = model.Posterior(kernel, inputs, targets)
    all_of_them = model.Posterior(kernel, np.vstack([inputs, pending]), np.zeros(15))
    for one, other, which in ((both, known, 0), (both, all_of_them, 1)):
        value, slopes = one.mean_and_variance(at)[which]
        expected, expected_slopes = other.mean_and_variance(at)[which]
        assert value == pytest.approx(expected)
        assert slopes == pytest.approx(expected_slopes)


def likelihood(kernel, inputs, targets):
    return model.likelihoods(np.linalg.cholesky(kernel.of(inputs)), targets)[-1]


def test_how_the_likelihood_changes_is_what_differences_say():
    rng = np.random.default_rng(5)
    inputs, targets = rng.uniform(size=(15, 4)), rng.normal(size=15)
    pairs = model.Pairs.of(inputs, inputs)
    for values in ([0.0, 0.0, -3.0, 0.05], [1.0, -2.0, -1.0, 0.3], [-1.0, 1.0, -6.0, 0.0]):
        cost, slopes = model.unlikeliness(np.array(values), pairs, targets)
        assert cost == pytest.approx(-likelihood(model._kernel_of(np.array(values)), inputs, targets))
        for number, slope in enumerate(slopes):
            step = np.eye(4)[number] * 1e-6
            (higher, _), (lower, _) = (
                model.unlikeliness(np.array(values) + side * step, pairs, targets) for side in (1, -1)
            )
            assert slope == pytest.approx((higher - lower) / 2e-6, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_the_fit_is_as_good_as_one_by_differences(seed):
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(size=(20 + 10 * seed, 4))
    targets = model.standardised(np.sin(5 * inputs[:, 2]) + 0.1 * seed * rng.normal(size=len(inputs)))
    start = np.array([0.0, 0.0, np.log(0.05), 0.05])
    slow = minimize(
        lambda values: -likelihood(model._kernel_of(values), inputs, targets),
        start,
        method="L-BFGS-B",
        bounds=model._BOUNDS,
        options={"maxiter": 30},
    )
    assert likelihood(model.fitted(inputs, targets), inputs, targets) >= -slow.fun - 1e-3


def test_one_factorisation_gives_the_likelihood_of_every_window():
    rng = np.random.default_rng(1)
    inputs, targets = rng.uniform(size=(9, 3)), rng.normal(size=9)
    kernel = model.Kernel(1.0, 0.5, 0.1, 0.0)
    for size in (1, 5, 9):
        covariance = kernel.of(inputs[:size])
        sign, logdet = np.linalg.slogdet(covariance)
        fit = targets[:size] @ np.linalg.solve(covariance, targets[:size])
        expected = -0.5 * (fit + logdet + size * np.log(2 * np.pi))
        assert sign == 1
        assert model.likelihoods(np.linalg.cholesky(kernel.of(inputs)), targets)[size - 1] == pytest.approx(
            expected
        )


def test_targets_are_standardised_and_clipped():
    assert model.standardised(np.array([1.0, 1.0])).tolist() == [0.0, 0.0]
    values = model.standardised(np.array([0.0] * 99 + [1000.0]))
    assert values.max() == 2.0


def test_old_points_that_say_something_else_are_left_out():
    rng = np.random.default_rng(2)
    inputs = rng.uniform(size=(260, 3))
    inputs[:, 0] = np.linspace(0, 1, 260)
    targets = np.sin(5 * inputs[:, 2])
    factor = np.linalg.cholesky(model.Kernel(1.0, 0.5, 0.01, 0.0).of(inputs[::-1]))
    assert model.window(factor[:199, :199], targets[::-1][:199]) == 199
    assert model.window(factor, targets[::-1]) == 260
    targets[:40] = rng.normal(size=40) * 3
    assert 200 <= model.window(factor, targets[::-1]) <= 220


def test_the_most_promising_point_is_found_and_points_that_are_pending_push_away():
    # The change is largest at 0.7 of the first value; the second does not matter.
    rng = np.random.default_rng(3)
    points = []
    for time in range(60):
        a, b = rng.uniform(0, 10), rng.uniform(-1, 1)
        points.append([float(time), float(time), a, b, -((a - 7.0) ** 2)])
    bounds = [(0.0, 10.0), (-1.0, 1.0)]
    first = model.best_point(points, [], (60.0, 60.0), bounds, seed=0)
    assert first[0] == pytest.approx(7.0, abs=1.5)
    assert model.best_point(points, [], (60.0, 60.0), bounds, seed=0) == first
    second = model.best_point(points, [[60.0, 60.0, *first]], (60.0, 60.0), bounds, seed=0)
    assert second != first


def test_one_point_and_bounds_without_width_are_enough():
    values = model.best_point([[1.0, 0.0, 0.5, 2.0, 0.1]], [], (1.0, 0.0), [(0.0, 1.0), (2.0, 2.0)], seed=0)
    assert 0 <= values[0] <= 1
    assert values[1] == 2.0
