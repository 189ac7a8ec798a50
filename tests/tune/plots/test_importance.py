"""Importance on data with known effects."""

from __future__ import annotations

import numpy as np
from tests.mistakes.views import assert_view

from muster.tune.plots.axes import parameter_axis
from muster.tune.plots.data import Ranking, bins_of, goodness_ranks, ranked

ABSENT = object()
RANDOM = np.random.default_rng(7)
COUNT = 120
LR = 10 ** RANDOM.uniform(-4, -1, COUNT)
NOISE = RANDOM.uniform(0, 1, COUNT)
NET = RANDOM.choice(["a", "b", "c"], COUNT)


def axes(**parameters):
    made = [parameter_axis(name, list(values), ABSENT) for name, values in parameters.items()]
    return [axis for axis in made if axis is not None]


def shares(ranking: Ranking) -> dict[str, float]:
    return {entry.name: entry.share for entry in ranking.entries}


def test_the_parameter_that_decides_comes_first_and_noise_stays_below_chance():
    found = ranked(axes(lr=LR, noise=NOISE, net=NET), np.log(LR), "min")
    assert found.entries[0].name == "lr"
    assert found.entries[0].share > 0.9 > found.chance
    assert all(entry.share <= found.chance for entry in found.entries[1:])


def test_a_trend_says_which_way_to_go_and_follows_the_mode():
    low = ranked(axes(lr=LR), np.log(LR), "min").entries[0]
    high = ranked(axes(lr=LR), np.log(LR), "max").entries[0]
    assert (low.direction.split()[0], high.direction.split()[0]) == ("lower", "higher")


def test_a_best_value_in_the_middle_is_seen_though_it_has_no_direction():
    entry = ranked(axes(lr=LR, noise=NOISE), np.abs(np.log10(LR) + 2.5), "min").entries[0]
    assert (entry.name, entry.direction) == ("lr", "")
    assert entry.share > 0.8


def test_a_best_value_off_the_middle_has_no_direction_either():
    entry = ranked(axes(lr=LR), np.abs(np.log10(LR) + 1.8), "min").entries[0]
    assert entry.share > 0.5
    assert (entry.trend, entry.direction) == (0.0, "")  # though most values lie below the best one


def test_categories_and_conditional_parameters_count():
    momentum = [m if net == "a" else ABSENT for m, net in zip(NOISE, NET, strict=True)]
    values = (np.array(NET) == "a") + RANDOM.normal(0, 0.1, COUNT)
    found = shares(ranked(axes(net=NET, momentum=momentum, lr=LR), values, "max"))
    assert found["net"] > 0.5
    assert found["momentum"] > 0.5  # being set is what it shares with the net
    assert found["lr"] < 0.1


def test_one_diverged_trial_does_not_decide_and_what_is_not_finite_is_worst():
    values = np.log(LR)
    wild = values.copy()
    wild[3], wild[4], wild[5] = 1e30, np.inf, np.nan
    assert abs(shares(ranked(axes(lr=LR), wild, "min"))["lr"] - 0.95) < 0.1
    assert goodness_ranks(np.array([1.0, np.nan, 2.0, -np.inf]), "min").tolist() == [3.0, 0.5, 2.0, 0.5]


def test_without_any_effect_almost_no_experiment_exceeds_chance():
    beyond = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        parameters = {f"p{n}": random.uniform(0, 1, 40) for n in range(5)}
        found = ranked(axes(**parameters), random.normal(size=40), "min")
        beyond += found.entries[0].share > found.chance
    assert beyond <= 9  # 3 expected; 9 or more happen once in 500


def test_the_share_of_noise_is_zero_on_average():
    random = np.random.default_rng(1)
    axis = axes(p=random.uniform(0, 1, 60))
    from muster.tune.plots.data import _share

    ranks = random.permuted(np.tile(np.arange(60.0), (4000, 1)), axis=1)
    assert abs(_share(bins_of(axis[0]), ranks).mean()) < 0.005


def test_it_says_why_there_is_nothing():
    values = np.arange(10.0)
    problems = [
        ranked(axes(lr=LR[:3]), values[:3], "min").problem,
        ranked([], values, "min").problem,
        ranked(axes(lr=LR[:10]), np.ones(10), "min").problem,
    ]
    assert_view("plots/no_importance", "\n".join(problems))


def test_the_same_trials_give_the_same_answer():
    assert ranked(axes(lr=LR, net=NET), NOISE, "min") == ranked(axes(lr=LR, net=NET), NOISE, "min")
