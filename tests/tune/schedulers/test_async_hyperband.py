"""AsyncHyperBandScheduler, stopping type: Ray's rules with exact values."""

import json
import math
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mistakes.views import assert_view

from muster.errors import RestoreError, TuneError
from muster.trials.model import Trial
from muster.tune.schedulers import ASHAScheduler

NAN, INF = math.nan, math.inf


def trial(name):
    return Trial("f", trial_id=name)


def result(time, score):
    return {"training_iteration": time, "score": score}


def asha(**parameters):
    return ASHAScheduler(**{"metric": "score", "mode": "max", **parameters})


def answers(scheduler, name, *results):
    return [scheduler.on_trial_result(None, trial(name), result(*one)) for one in results]


def rungs(scheduler):
    """Return the rungs of each bracket, as the debug string shows them."""
    lines = scheduler.debug_string().splitlines()[1:]
    return [dict(re.findall(r"Iter (\S+): (\S+)", line)) for line in lines]


def with_two_trials(scheduler):
    """t1 scores 100 per unit of time, t2 always 450."""
    for name in ("t1", "t2"):
        scheduler.on_trial_add(None, trial(name))
    assert answers(scheduler, "t1", *((time, time * 100) for time in range(1, 10))) == ["CONTINUE"] * 9
    assert answers(scheduler, "t2", *((time, 450) for time in range(1, 5))) == ["CONTINUE"] * 4
    return scheduler


@pytest.mark.conformance("C-155")
def test_a_trial_is_stopped_at_max_t_however_good():
    scheduler = with_two_trials(asha(max_t=10, reduction_factor=2, grace_period=1))
    assert answers(scheduler, "t1", (10, 1e9), (11, 1e9)) == ["STOP", "STOP"]


@pytest.mark.conformance("C-155")
def test_nothing_is_stopped_before_the_grace_period():
    scheduler = with_two_trials(asha(grace_period=2.5, reduction_factor=3))
    scheduler.on_trial_add(None, trial("t3"))
    assert answers(scheduler, "t3", (1, 10), (2, 10), (3, 10)) == ["CONTINUE", "CONTINUE", "STOP"]


@pytest.mark.conformance("C-155")
def test_a_score_below_the_percentile_of_those_before_it_is_stopped():
    scheduler = asha(grace_period=1, max_t=10, reduction_factor=2)
    said = [answers(scheduler, f"t{i}", (1, score))[0] for i, score in enumerate((8, 6, 7, 7, 6.99, NAN))]
    assert said == ["CONTINUE", "STOP", "CONTINUE", "CONTINUE", "STOP", "STOP"]


def test_small_is_good_in_min_mode():
    scheduler = asha(mode="min", reduction_factor=2)
    assert [answers(scheduler, f"t{i}", (1, score))[0] for i, score in enumerate((1, 2, 0))] == [
        "CONTINUE",
        "STOP",
        "CONTINUE",
    ]


@pytest.mark.conformance("C-155")
def test_a_diverged_trial_stops_and_is_no_reason_to_stop_another():
    scheduler = asha(reduction_factor=2)
    assert answers(scheduler, "t1", (1, NAN)) == ["STOP"]
    assert answers(scheduler, "t2", (1, -5)) == ["CONTINUE"]  # the percentile of NaN alone is NaN
    assert answers(scheduler, "t3", (1, -6)) == ["STOP"]
    assert scheduler.debug_string().endswith("Iter 2.000: None | Iter 1.000: -5.5")


@pytest.mark.conformance("C-154")
@pytest.mark.parametrize("kind", ["stopping", "promotion"])
def test_infinite_and_missing_scores_never_crash(kind):
    scheduler = asha(type=kind, reduction_factor=2)
    for index, score in enumerate((NAN, INF, -INF, INF, -INF, NAN, 1.0)):
        scheduler.on_trial_add(None, trial(f"t{index}"))
        assert answers(scheduler, f"t{index}", (1, score))[0] in ("CONTINUE", "STOP", "PAUSE")
        scheduler.on_trial_complete(None, trial(f"t{index}"), result(2, score))
    assert scheduler.debug_string().startswith("Using AsyncHyperBand: num_stopped=")


@pytest.mark.conformance("C-156")
def test_the_last_trials_keep_running_when_asked():
    scheduler = asha(max_t=3, grace_period=1, reduction_factor=2, stop_last_trials=False)
    for index in range(4):
        scheduler.on_trial_add(None, trial(f"t{index}"))
    said = [answers(scheduler, f"t{index}", (2, 10 - 2 * index))[0] for index in range(4)]
    assert said == ["CONTINUE", "STOP", "STOP", "STOP"]
    assert answers(scheduler, "t0", (4, 1), (8, 1), (14, 1)) == ["CONTINUE"] * 3


def test_at_most_one_rung_is_filled_per_result_and_skipped_ones_later():
    scheduler = asha(max_t=9, reduction_factor=3)
    assert answers(scheduler, "t1", (4, 5.0)) == ["CONTINUE"]
    assert rungs(scheduler) == [{"9.000": "None", "3.000": "5.0", "1.000": "None"}]
    assert answers(scheduler, "t1", (5, 6.0)) == ["CONTINUE"]
    assert rungs(scheduler) == [{"9.000": "None", "3.000": "5.0", "1.000": "6.0"}]


def test_a_last_result_is_recorded_on_completion_and_may_fill_a_lower_rung():
    scheduler = asha(max_t=9, reduction_factor=3)
    scheduler.on_trial_add(None, trial("t1"))
    assert answers(scheduler, "t1", (9, 7.0)) == ["STOP"]
    assert scheduler.debug_string().endswith("Iter 9.000: None | Iter 3.000: None | Iter 1.000: None")
    scheduler.on_trial_complete(None, trial("t1"), result(9, 7.0))
    assert scheduler.debug_string().endswith("Iter 9.000: 7.0 | Iter 3.000: None | Iter 1.000: None")
    scheduler.on_trial_complete(None, trial("t1"), result(9, 7.0))
    assert scheduler.debug_string().endswith("Iter 9.000: 7.0 | Iter 3.000: 7.0 | Iter 1.000: None")


def live_trials(scheduler):
    return list(json.loads(scheduler.save_state())["state"]["_bracket_of"])


def test_ended_removed_and_failed_trials_are_forgotten_even_without_a_metric():
    scheduler = asha()
    for name in ("done", "silent", "removed", "failed", "live"):
        scheduler.on_trial_add(None, trial(name))
    scheduler.on_trial_complete(None, trial("done"), result(1, 1.0))
    scheduler.on_trial_complete(None, trial("silent"), {"done": True})
    scheduler.on_trial_remove(None, trial("removed"))
    scheduler.on_trial_error(None, trial("failed"))
    assert live_trials(scheduler) == ["live"]


def test_a_result_without_time_or_metric_means_nothing():
    scheduler = asha()
    assert scheduler.on_trial_result(None, trial("t"), {"training_iteration": 100}) == "CONTINUE"
    assert scheduler.on_trial_result(None, trial("t"), {"score": 1.0}) == "CONTINUE"
    assert scheduler.debug_string().splitlines()[0].partition("=")[2] == "0"


def test_num_stopped_counts_stop_answers_only():
    scheduler = asha(max_t=2, reduction_factor=2)
    answers(scheduler, "t1", (1, 5), (2, 5))
    scheduler.on_trial_complete(None, trial("t1"), result(2, 5))
    answers(scheduler, "t2", (1, 1))
    scheduler.on_trial_complete(None, trial("t2"), result(1, 1))
    assert_view("schedulers/asha", scheduler.debug_string())


def test_brackets_begin_one_rung_later_each_and_may_have_none():
    scheduler = asha(max_t=9, reduction_factor=3, brackets=4)
    assert [list(each) for each in rungs(scheduler)] == [
        ["9.000", "3.000", "1.000"],
        ["9.000", "3.000"],
        ["9.000"],
        [],
    ]


def brackets_of(scheduler, count):
    for index in range(count):
        scheduler.on_trial_add(None, trial(f"t{index}"))
    return list(json.loads(scheduler.save_state())["state"]["_bracket_of"].values())


def test_brackets_are_drawn_by_the_exponential_of_their_rungs_from_an_own_stream():
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    drawn = brackets_of(asha(max_t=9, reduction_factor=3, brackets=3, seed=1), 3000)
    assert np.random.get_state()[1].tolist() == before
    weights = np.exp([0, -1, -2])
    assert np.allclose(np.bincount(drawn) / 3000, weights / weights.sum(), atol=0.03)
    assert brackets_of(asha(max_t=9, reduction_factor=3, brackets=3, seed=1), 50) == drawn[:50]
    assert brackets_of(asha(max_t=9, reduction_factor=3, brackets=3, seed=2), 50) != drawn[:50]


def test_a_retried_trial_goes_on_in_the_bracket_where_it_was_judged():
    scheduler = asha(max_t=27, reduction_factor=3, brackets=3)
    drawn = brackets_of(scheduler, 40)
    for index in range(40):
        answers(scheduler, f"t{index}", (9, 1.0))
        scheduler.on_trial_error(None, trial(f"t{index}"))
    assert set(drawn) == {0, 1, 2}
    assert brackets_of(scheduler, 40) == drawn


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_t": 0}, "max_t is 0"),
        ({"grace_period": 0}, "grace_period is 0"),
        ({"max_t": 5, "grace_period": 6}, r"grace_period \(6\) must not be greater than max_t \(5\)"),
        ({"reduction_factor": 1}, "reduction_factor is 1"),
        ({"brackets": 0}, "brackets is 0"),
        ({"type": "halving"}, "type is 'halving'; it must be one of stopping, promotion"),
        ({"mode": "best"}, "mode is 'best'; it must be 'min' or 'max'"),
    ],
)
def test_contradictory_parameters_are_refused_by_name(parameters, message):
    with pytest.raises(ValueError, match=f"AsyncHyperBandScheduler: {message}"):
        ASHAScheduler(**parameters)


def test_a_trial_cannot_be_added_before_metric_and_mode_are_known():
    with pytest.raises(ValueError, match="AsyncHyperBandScheduler"):
        ASHAScheduler(metric="score").on_trial_add(None, trial("t"))


def test_metric_and_mode_are_taken_once():
    assert asha().set_search_properties("loss", None) is False
    assert asha().set_search_properties(None, "min") is False
    fresh = ASHAScheduler()
    assert (fresh.set_search_properties(None, None), fresh.metric) == (True, None)
    assert (fresh.set_search_properties(None, "min"), fresh.metric) == (True, "_metric")


def test_a_score_that_is_no_number_is_reported_with_trial_and_key():
    with pytest.raises(TuneError, match=r"t1.*high"):
        answers(asha(), "t1", (1, "high"))


def test_numpy_numbers_are_numbers():
    scheduler = asha(max_t=np.int64(9), reduction_factor=np.float32(3))
    assert answers(scheduler, "t1", (np.int64(1), np.float32(2.5))) == ["CONTINUE"]
    again = ASHAScheduler()
    again.restore_state(scheduler.save_state())
    assert again.debug_string() == scheduler.debug_string()


@pytest.mark.conformance("C-155")
def test_rungs_survive_saving_by_path_by_bytes_and_by_pickle(tmp_path):
    scheduler = with_two_trials(asha(grace_period=2.5, reduction_factor=3))
    scheduler.save(str(tmp_path / "asha"))
    by_path, by_bytes = ASHAScheduler(), ASHAScheduler()
    by_path.restore(str(tmp_path / "asha"))
    by_bytes.restore_state(scheduler.save_state())
    for again in (by_path, by_bytes, pickle.loads(pickle.dumps(scheduler))):
        assert again.save_state() == scheduler.save_state()
        assert answers(again, "t3", (1, 10), (2, 10), (3, 10)) == ["CONTINUE", "CONTINUE", "STOP"]


def test_the_state_of_another_kind_is_refused():
    from muster.tune.schedulers import FIFOScheduler

    with pytest.raises(RestoreError, match=r"AsyncHyperBandScheduler.*fifo"):
        asha().restore_state(FIFOScheduler().save_state())


def test_importing_it_does_not_load_numpy():
    code = "import sys, muster.tune.schedulers.async_hyperband; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class Naive:
    """Ray's rules in the plainest form, with numpy's percentile; NaN is stopped, unlike in Ray."""

    def __init__(self, max_t, grace, factor, stop_last):
        count = int(math.log(max_t / grace) / math.log(factor) + 1)
        self.rungs = [(grace * factor**k, {}) for k in reversed(range(count))]
        self.max_t, self.factor, self.stop_last = max_t, factor, stop_last

    def result(self, name, time, score):
        if time >= self.max_t and self.stop_last:
            return "STOP"
        return self.record(name, time, score)

    def record(self, name, time, score):
        for milestone, scores in self.rungs:
            if time >= milestone and name in scores and not self.stop_last:
                return "CONTINUE"
            if time < milestone or name in scores:
                continue
            cutoff = None
            if scores:
                values = [v for v in scores.values() if not math.isnan(v)] or [NAN]
                cutoff = (
                    float(np.nanpercentile(values, (1 - 1 / self.factor) * 100)) if values != [NAN] else NAN
                )
            scores[name] = score
            return "STOP" if math.isnan(score) or (cutoff is not None and score < cutoff) else "CONTINUE"
        return "CONTINUE"


SCORES = st.one_of(st.floats(-10, 10), st.integers(-3, 3).map(float), st.just(NAN))
EVENTS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([1, 1, 2, 5, 40]), SCORES, st.booleans()), max_size=60
)


@given(
    EVENTS,
    st.sampled_from([3, 9, 10, 81, 100]),
    st.sampled_from([1, 2, 2.5]),
    st.sampled_from([1.5, 2, 3, 4]),
    st.booleans(),
)
def test_every_decision_is_the_one_of_the_plain_rules(events, max_t, grace, factor, stop_last):
    naive = Naive(max_t, grace, factor, stop_last)
    ours = asha(max_t=max_t, grace_period=grace, reduction_factor=factor, stop_last_trials=stop_last)
    times = dict.fromkeys(range(8), 0)
    for index, step, score, completes in events:
        times[index] += step
        one = result(times[index], score)
        assert ours.on_trial_result(None, trial(f"t{index}"), one) == naive.result(
            f"t{index}", times[index], score
        )
        if completes:
            ours.on_trial_complete(None, trial(f"t{index}"), one)
            naive.record(f"t{index}", times[index], score)


@pytest.mark.slow
@given(
    EVENTS, st.integers(0, 60), st.integers(1, 3), st.sampled_from(["stopping", "promotion"]), st.booleans()
)
def test_saving_and_restoring_anywhere_changes_no_later_decision(events, at, brackets, kind, by_pickle):
    steady = asha(max_t=20, reduction_factor=2, brackets=brackets, type=kind, seed=3)
    moved = asha(max_t=20, reduction_factor=2, brackets=brackets, type=kind, seed=3)
    times = dict.fromkeys(range(8), 0)
    for count, (index, step, score, completes) in enumerate(events):
        if count == at:
            state, moved = (
                moved.save_state(),
                pickle.loads(pickle.dumps(moved)) if by_pickle else ASHAScheduler(),
            )
            if not by_pickle:
                moved.restore_state(state)
        times[index] += step
        one = result(times[index], score)
        for scheduler in (steady, moved):
            scheduler.on_trial_add(None, trial(f"t{index}"))
        said = [s.on_trial_result(None, trial(f"t{index}"), one) for s in (steady, moved)]
        assert said[0] == said[1]
        if completes:
            for scheduler in (steady, moved):
                scheduler.on_trial_complete(None, trial(f"t{index}"), one)
    assert moved.save_state() == steady.save_state()
    assert moved.debug_string() == steady.debug_string()
