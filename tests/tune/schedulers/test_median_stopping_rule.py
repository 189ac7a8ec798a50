"""Median stopping: vectors, the definition computed the long way round, and random experiments."""

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.series import length
from tests.simulation.tune.crash_matrix import matrix, recorded, resumed_runs
from tests.tune.schedulers.by_hand import ByHand
from tests.tune.schedulers.storms import storm

from muster.errors import TuneError
from muster.tune.schedulers import MedianStoppingRule
from muster.tune.schedulers.median_stopping_rule import Curves

NAN = math.nan


def median(**parameters):
    defaults = {"time_attr": "training_iteration", "metric": "score", "mode": "max", "grace_period": 0}
    return MedianStoppingRule(**{**defaults, "min_samples_required": 1, **parameters})


def two_trials(scheduler):
    """One rises from 0 to 900 in ten steps, the other stays at 450 for five; their means are alike."""
    hand = ByHand(scheduler, 2)
    rising, constant = hand.trials
    hand.start(rising, constant)
    assert [hand.report(rising, time, time * 100.0) for time in range(10)] == ["CONTINUE"] * 10
    assert [hand.report(constant, time, 450.0) for time in range(5)] == ["CONTINUE"] * 5
    return hand, rising, constant


@pytest.mark.conformance("C-150")
def test_a_constant_trial_stops_when_the_mean_of_the_other_has_passed_it():
    # The mean of 0, 100, ... 1000 is 500.
    hand, rising, constant = two_trials(median())
    hand.complete(rising, {"training_iteration": 10, "score": 1000.0})
    assert hand.report(constant, 5, 450.0) == "CONTINUE"
    assert hand.report(constant, 6, 0.0) == "CONTINUE"  # its best counts, not its last
    assert hand.report(constant, 10, 450.0) == "STOP"
    assert hand.scheduler.debug_string().endswith("MedianStoppingRule: num_stopped=1.")


@pytest.mark.conformance("C-151")
def test_nothing_is_stopped_within_the_grace_period():
    hand, rising, _ = two_trials(median(grace_period=2.5))
    hand.complete(rising, {"training_iteration": 10, "score": 1000.0})
    bad = hand.add()
    assert [hand.report(bad, time, 10.0) for time in (1, 2, 3)] == ["CONTINUE", "CONTINUE", "STOP"]


@pytest.mark.conformance("C-152")
def test_nothing_is_stopped_with_fewer_others_than_required():
    hand, rising, constant = two_trials(median(min_samples_required=2))
    bad = hand.add()
    hand.complete(rising, {"training_iteration": 10, "score": 1000.0})
    assert hand.report(bad, 5, 10.0) == "CONTINUE"
    hand.complete(constant, {"training_iteration": 10, "score": 1000.0})
    assert hand.report(bad, 6, 0.0) == "STOP"


@pytest.mark.conformance("C-153")
def test_a_soft_stop_pauses_once():
    hand, rising, _ = two_trials(median(hard_stop=False))
    hand.complete(rising, {"training_iteration": 10, "score": 1000.0})
    bad = hand.add()
    assert hand.report(bad, 1, 0.0) == "PAUSE"
    assert [hand.report(bad, time, 0.0) for time in (2, 3)] == ["CONTINUE", "CONTINUE"]
    assert hand.scheduler.debug_string().endswith("MedianStoppingRule: num_stopped=1.")


def test_values_before_the_grace_period_are_in_nobodys_mean():
    hand = ByHand(median(grace_period=3), 2)
    good, other = hand.trials
    hand.start(good, other)
    for time, score in ((1, -1e9), (2, -1e9), (3, 10.0), (4, 10.0)):
        hand.report(good, time, score)
    assert hand.report(other, 4, 9.0) == "STOP"


def test_smaller_is_better_in_mode_min():
    hand = ByHand(median(mode="min"), 2)
    hand.start(*hand.trials)
    hand.report(hand.trials[0], 1, 5.0)
    assert hand.report(hand.trials[1], 1, 6.0) == "STOP"
    third = hand.add()
    assert hand.report(third, 1, 4.0) == "CONTINUE"


def test_equal_trials_are_not_stopped_by_the_rounding_of_a_mean():
    hand = ByHand(median(), 5)
    hand.start(*hand.trials)
    said = [hand.report(trial, time, 0.1) for time in range(1, 30) for trial in hand.trials]
    assert sum([0.1] * 3) / 3 > 0.1
    assert set(said) == {"CONTINUE"}


def test_a_nan_in_the_beginning_is_not_the_best_for_ever():
    hand = ByHand(median(grace_period=2), 2)
    good, late = hand.trials
    hand.start(good, late)
    assert [hand.report(late, 1, NAN), hand.report(good, 1, 1.0), hand.report(good, 2, 1.0)] == [
        "CONTINUE"
    ] * 3
    assert hand.report(late, 2, 5.0) == "CONTINUE"


def test_nothing_but_nan_is_worse_than_any_median():
    hand = ByHand(median(grace_period=2), 2)
    good, bad = hand.trials
    hand.start(good, bad)
    assert [hand.report(bad, 1, NAN), hand.report(good, 2, -1e9)] == ["CONTINUE", "CONTINUE"]
    assert hand.report(bad, 2, NAN) == "STOP"


@pytest.mark.conformance("C-154")
@pytest.mark.parametrize("odd", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_others_without_a_finite_mean_do_not_count(odd, mode):
    hand = ByHand(median(mode=mode), 3)
    hand.start(*hand.trials)
    for trial in hand.trials[:2]:
        hand.report(trial, 1, odd)
    assert hand.report(hand.trials[2], 1, 1.0) == "CONTINUE"


def test_a_window_without_a_value_counts_as_nan():
    hand = ByHand(median(grace_period=2), 2)
    jumping, steady = hand.trials
    hand.start(jumping, steady)
    hand.report(jumping, 1, 100.0)
    hand.report(jumping, 10, 100.0)
    assert hand.report(steady, 5, 1.0) == "CONTINUE"
    assert hand.report(steady, 10, 1.0) == "STOP"


def test_with_too_few_others_a_trial_makes_room_for_one_that_waits():
    hand = ByHand(median(min_samples_required=3, min_time_slice=2), 2)
    first, second = hand.trials
    assert hand.report(first, 1, 1.0) == "PAUSE"  # the other is pending
    assert hand.choose() == second.trial_id
    assert [hand.report(first, time, 1.0) for time in (2, 3)] == ["CONTINUE", "CONTINUE"]
    assert hand.report(first, 4, 1.0) == "PAUSE"
    hand.start(first, second)
    assert hand.report(first, 40, 1.0) == "CONTINUE"  # nobody waits


def test_results_without_time_or_metric_are_ignored():
    hand, rising, constant = two_trials(median())
    assert hand.scheduler.on_trial_result(hand.view, constant, {"score": 1.0}) == "CONTINUE"
    assert hand.scheduler.on_trial_result(hand.view, constant, {"training_iteration": 9}) == "CONTINUE"
    hand.complete(rising, {"done": True})
    assert hand.report(constant, 5, 450.0) == "CONTINUE"
    assert hand.report(constant, NAN, 0.0) == "CONTINUE"


def test_the_last_result_counts_once():
    hand = ByHand(median(), 2)
    first, second = hand.trials
    hand.start(first, second)
    hand.report(first, 1, 0.0)
    hand.report(first, 2, 10.0)
    hand.complete(first)  # with its last result again
    assert hand.report(second, 2, 5.0) == "CONTINUE"  # the mean is 5, and not 20 / 3


def test_a_trial_that_is_started_again_reports_its_past_anew():
    hand = ByHand(median(), 2)
    first, second = hand.trials
    hand.start(first, second)
    for time in (1, 2, 3):
        hand.report(first, time, 10.0)
    for time in (1, 2, 3):
        hand.report(first, time, 4.0)
    assert hand.report(second, 3, 5.0) == "CONTINUE"


# Curves against the definition


def long_way_round(records, grace_period, trial_id, time):
    means = []
    for name, told in records.items():
        if name == trial_id or not told or told[-1][0] < time:
            continue
        window = [score for at, score in told if grace_period <= at <= time]
        mean = sum(window) / len(window) if window else NAN
        if math.isfinite(mean):
            means.append(mean)
    return len(means), statistics.median(means) if means else NAN


REPORTS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 6),
        st.one_of(st.integers(-8, 8).map(float), st.just(NAN), st.just(math.inf)),
    ),
    max_size=60,
)


@given(REPORTS, st.integers(0, 3))
def test_every_median_is_the_one_of_the_definition(reports, grace_period):
    curves, records = Curves(grace_period), {}
    for name, time, score in reports:
        told = records.setdefault(name, [])
        if told and time < told[-1][0]:  # started again
            told[:] = [one for one in told if one[0] < time]
        told.append((time, score))
        curves.record(name, time, score)
        if time < grace_period:
            continue
        number, expected = long_way_round(records, grace_period, name, time)
        found = curves.others(name, time)
        assert found.number == number
        assert found.median == pytest.approx(expected, nan_ok=True)
        again = Curves(grace_period)
        again.from_plain(json.loads(json.dumps(curves.to_plain())))
        assert repr(again.others(name, time)) == repr(found)


def test_a_decision_does_not_look_at_every_trial_when_they_report_at_the_same_times(monkeypatch):
    curves = Curves(0)
    asked = []
    mean = curves.others.__globals__["ScoreCurve"].mean
    monkeypatch.setattr(
        "muster.tune.schedulers.median_stopping_rule.ScoreCurve.mean", lambda *a: asked.append(1) or mean(*a)
    )
    for name in range(2000):
        curves.record(str(name), 1, float(name))
        curves.others(str(name), 1)
    assert len(asked) < 3 * 2000


# Parameters and state


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"grace_period": -1}, "MedianStoppingRule: grace_period is -1; it must be at least 0"),
        ({"grace_period": NAN}, "MedianStoppingRule: grace_period is nan; it must be at least 0"),
        ({"min_samples_required": 0}, "MedianStoppingRule: min_samples_required is 0; it must be at least 1"),
        ({"min_time_slice": -2}, "MedianStoppingRule: min_time_slice is -2; it must be at least 0"),
        ({"mode": "most"}, "MedianStoppingRule: mode is 'most'; it must be 'min' or 'max'"),
    ],
)
def test_impossible_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        median(**parameters)


def test_metric_and_mode_are_needed():
    with pytest.raises(ValueError, match="MedianStoppingRule"):
        ByHand(MedianStoppingRule(), 1)


def test_an_unknown_parameter_is_refused():
    with pytest.raises(TypeError, match="max_t"):
        MedianStoppingRule(max_t=9)


def test_a_metric_that_is_no_number_is_an_error_that_names_it():
    hand = ByHand(median(), 1)
    with pytest.raises(TuneError, match=r"t0.*good"):
        hand.report(hand.trials[0], 1, "good")


def test_the_state_is_plain_and_equal_after_a_restore():
    hand, rising, _ = two_trials(median())
    hand.report(hand.add(), 3, -1.0)
    hand.complete(rising)
    state = hand.scheduler.save_state()
    assert json.loads(state)["kind"] == "median_stopping_rule"
    again = MedianStoppingRule()
    again.restore_state(state)
    assert again.save_state() == state


def maker(seed):
    parameters = {"time_attr": ("training_iteration", "time_total_s")[seed % 2], "hard_stop": seed % 3 > 0}
    return lambda: MedianStoppingRule(grace_period=2, min_samples_required=1 + seed % 4, **parameters)


@pytest.mark.slow
def test_random_experiments_end_by_themselves():
    for seed in range(length(150, 700)):
        asked = storm(maker(seed), seed)
        trials = asked.run().state.trials.values()
        assert len(trials) == asked.num_samples
        assert {trial.status for trial in trials} <= {"TERMINATED", "ERROR"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_restored_at_any_commit_it_decides_as_if_nothing_had_happened(seed):
    commits, told = matrix(storm(maker(seed), seed))
    assert told == []
    assert commits > 1


def test_a_killed_experiment_is_run_to_its_end_by_the_next_driver():
    asked = storm(maker(3), 3)
    commits = recorded(asked)
    for life in resumed_runs(asked, commits[:: max(1, len(commits) // 20)]):
        assert {trial.status for trial in life.state.trials.values()} <= {"TERMINATED", "ERROR"}
