"""HyperBand: the brackets of Li et al., halvings by hand, and what must not hold them up."""

import json
import math
import pickle
import re
from collections import Counter
from itertools import pairwise

import pytest
from tests.mistakes.views import assert_view
from tests.tune.schedulers.by_hand import ByHand
from tests.tune.schedulers.fleet import Fleet, Search

from muster.errors import RestoreError, TuneError
from muster.trials.states import TrialState
from muster.tune.schedulers import HyperBandScheduler
from muster.tune.schedulers.hyperband_bracket import HyperBandParameters

NAN = math.nan


def hyperband(**parameters):
    return HyperBandScheduler(**{"metric": "score", "mode": "max", **parameters})


def table(max_t, eta):
    """All rungs of all brackets as (trials, milestone), the bracket without halvings first."""
    parameters = HyperBandParameters("t", max_t, eta, True).check("test")
    rows = []
    for s in range(parameters.brackets_per_band):
        rungs = [parameters.first_rung(s)]
        for _ in range(s):
            rungs.append(parameters.next_rung(*rungs[-1]))
        rows.append(rungs)
    return rows


@pytest.mark.conformance("C-157")
def test_the_brackets_for_81_and_3_are_those_of_the_paper():
    # First rungs as in table 1 of Li et al.; later ones keep a third rounded up, where the paper rounds down.
    assert table(81, 3) == [
        [(5, 81)],
        [(8, 27), (3, 81)],
        [(15, 9), (5, 27), (2, 81)],
        [(34, 3), (12, 9), (4, 27), (2, 81)],
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    ]


@pytest.mark.conformance("C-157")
def test_the_brackets_for_1000_and_10():
    assert table(1000, 10) == [
        [(4, 1000)],
        [(20, 100), (2, 1000)],
        [(134, 10), (14, 100), (2, 1000)],
        [(1000, 1), (100, 10), (10, 100), (1, 1000)],
    ]


def test_no_bracket_is_lost_to_rounding():
    assert [row[0] for row in table(729, 3)][-1] == (729, 1)  # 729 * 3 ** -6 is just below 1 in floats


def test_one_band_of_trials_is_halved_at_every_milestone_of_the_table():
    fleet = Fleet(
        hyperband(), Search(143), lambda name, time: float(int(name[1:]) * 37 % 97), workers=8
    ).run()
    ends = [[*rungs, (0, 0)] for rungs in table(81, 3)]
    expected = Counter()
    for rungs in ends:
        for (n, milestone), (kept, _) in pairwise(rungs):
            expected[milestone] += n - kept
    assert Counter(fleet.time.values()) == expected
    assert expected == {1: 54, 3: 18 + 22, 9: 6 + 8 + 10, 27: 2 + 2 + 3 + 5, 81: 1 + 2 + 2 + 3 + 5}
    assert set(fleet.statuses().values()) == {"TERMINATED"}
    assert fleet.scheduler.state() == {"num_brackets": 5, "num_stopped": 143 - 13}  # 13 came to 81


def test_brackets_are_filled_one_after_the_other_and_then_a_new_round_begins():
    hand = ByHand(hyperband(), 144)
    assert_view("schedulers/hyperband_rounds", hand.scheduler.debug_string())


def test_the_debug_string_counts_all_trials_of_a_bracket_and_those_that_others_beat():
    hand = ByHand(hyperband(max_t=9), 8)
    hand.start(*hand.trials)
    hand.fail(hand.trials[3])
    for trial in hand.trials[4:]:
        hand.report(trial, 3, 1.0)
    assert_view("schedulers/hyperband_bracket", hand.scheduler.debug_string())


@pytest.mark.conformance("C-162")
def test_a_bracket_whose_first_milestone_would_be_0_is_left_out():
    # round(log 60 / log 3) + 1 = 5 brackets, the last of which would begin at int(60 / 81).
    hand = ByHand(hyperband(max_t=60), 5 + 8 + 15 + 34)
    hand.add()
    text = hand.scheduler.debug_string()
    assert "total_brackets=6" in text  # the one left out is counted, as Ray does
    assert re.findall(r"#(\d):|\(n\)=(\d+)", text) == [
        ("0", ""),
        *(("", size) for size in ("5", "8", "15", "34")),
        ("1", ""),
        ("", "5"),
    ]
    assert hand.choose() == "t0"


@pytest.mark.conformance("C-158")
def test_81_trials_become_1_and_only_the_last_of_a_rung_does_not_pause():
    hand = ByHand(hyperband(), 143)
    members, milestone = hand.trials[-81:], 1
    hand.start(*members)
    while milestone < 81:
        decisions = [hand.report(trial, milestone, index) for index, trial in enumerate(members)]
        assert decisions == ["PAUSE"] * (len(members) - 1) + ["CONTINUE"]
        kept = members[-math.ceil(len(members) / 3) :]
        assert [trial for trial in members if not trial.is_finished()] == kept
        members, milestone = kept, milestone * 3
    assert len(members) == 1
    assert hand.report(members[0], 81, 0) == "STOP"


def test_the_last_of_a_rung_stops_when_it_is_not_among_the_best():
    hand = ByHand(hyperband(max_t=9), 3 + 5)
    five = hand.trials[3:]
    assert [hand.report(trial, 3, -index) for index, trial in enumerate(five)] == ["PAUSE"] * 4 + ["STOP"]
    assert hand.statuses()[3:] == ["PAUSED"] * 2 + ["TERMINATED"] * 3
    hand.start(*hand.trials[:3])
    assert hand.choose() == "t3"
    hand.start(five[0])
    assert hand.choose() == "t4"


def test_of_equal_trials_those_that_came_later_go_on():
    hand = ByHand(hyperband(max_t=9), 8)
    for trial in hand.trials[3:]:
        hand.report(trial, 3, 1.0)
    assert [trial.trial_id for trial in hand.trials[3:] if not trial.is_finished()] == ["t6", "t7"]


def test_smaller_is_better_in_mode_min():
    hand = ByHand(hyperband(max_t=9, mode="min"), 8)
    for index, trial in enumerate(hand.trials[3:]):
        hand.report(trial, 3, index)
    assert [trial.trial_id for trial in hand.trials[3:] if not trial.is_finished()] == ["t3", "t4"]


def bracket_of_four(**parameters):
    """8 trials, max_t 8, eta 2: the first four run to 8, the other four are halved at 4."""
    hand = ByHand(hyperband(max_t=8, reduction_factor=2, **parameters), 8)
    hand.start(*hand.trials)
    return hand, hand.trials[:4], hand.trials[4:]


@pytest.mark.conformance("C-161")
def test_the_first_bracket_runs_to_the_end():
    hand, first, _ = bracket_of_four()
    assert [hand.report(trial, 4, 1) for trial in first] == ["CONTINUE"] * 4
    assert [hand.report(trial, 8, 1) for trial in first] == ["PAUSE"] * 3 + ["STOP"]
    assert hand.statuses()[:4] == ["TERMINATED"] * 4


@pytest.mark.conformance("C-161")
def test_the_second_bracket_is_halved_at_4_and_stops_at_8():
    hand, _, second = bracket_of_four()
    decisions = [hand.report(trial, 4, index) for index, trial in enumerate(second)]
    assert decisions == ["PAUSE"] * 3 + ["CONTINUE"]
    assert hand.statuses()[4:] == ["TERMINATED", "TERMINATED", "PAUSED", "RUNNING"]
    assert hand.report(second[3], 8, 1) == "PAUSE"
    assert hand.report(second[2], 8, 1) == "STOP"
    assert hand.statuses()[4:] == ["TERMINATED"] * 4


@pytest.mark.conformance("C-161")
def test_without_stop_last_trials_the_last_ones_go_on():
    hand, first, second = bracket_of_four(stop_last_trials=False)
    for index, trial in enumerate(second):
        hand.report(trial, 4, index)
    assert [hand.report(trial, 8, 1) for trial in (*first, *second[2:])] == ["CONTINUE"] * 6
    assert [hand.report(trial, 20, 1) for trial in (*first, *second[2:])] == ["CONTINUE"] * 6


@pytest.mark.conformance("C-161")
@pytest.mark.parametrize(("stop_last", "left"), [(True, []), (False, ["t6", "t7"])])
def test_trials_that_jump_over_the_last_milestone_are_halved_and_done_at_once(stop_last, left):
    hand, _, second = bracket_of_four(stop_last_trials=stop_last)
    decisions = [hand.report(trial, 8, index) for index, trial in enumerate(second)]
    assert decisions == ["PAUSE"] * 3 + ["STOP" if stop_last else "CONTINUE"]
    assert [trial.trial_id for trial in second if not trial.is_finished()] == left
    if not stop_last:
        assert hand.choose() == "t6"  # paused, and let on


@pytest.mark.conformance("C-159")
def test_a_member_that_failed_or_ended_does_not_hold_up_the_others():
    hand = ByHand(hyperband(max_t=9), 8)
    a, b, c, d, e = hand.trials[3:]
    hand.start(a, b, c, d, e)
    hand.fail(a)
    hand.complete(b, {"training_iteration": 1, "score": 9})
    assert hand.report(c, 3, 1) == "PAUSE"
    assert hand.report(d, 3, 2) == "PAUSE"
    assert hand.report(e, 3, 3) == "CONTINUE"
    assert hand.statuses()[3:] == ["ERROR", "TERMINATED", "TERMINATED", "PAUSED", "RUNNING"]


@pytest.mark.parametrize("how", ["fail", "complete", "remove"])
def test_when_the_last_one_they_waited_for_goes_away_the_others_are_halved(how):
    hand = ByHand(hyperband(max_t=9), 8)
    members = hand.trials[3:]
    if how != "remove":
        hand.start(members[-1])
    for index, trial in enumerate(members[:-1]):
        hand.report(trial, 3, index)
    getattr(hand, how)(members[-1])
    assert hand.statuses()[3:7] == ["TERMINATED", "TERMINATED", "PAUSED", "PAUSED"]
    hand.start(*hand.trials[:3])
    assert hand.choose() == "t5"


@pytest.mark.conformance("C-160")
def test_a_trial_that_comes_after_a_halving_has_to_catch_up():
    # The second bracket (8 trials, milestone 27) gets one, is halved, and then gets another.
    hand = ByHand(hyperband(), 6)
    assert hand.report(hand.trials[5], 27, 1) == "CONTINUE"
    late = hand.add()
    assert hand.report(late, 27, 12) == "CONTINUE"
    assert hand.report(late, 81, 12) == "PAUSE"
    assert hand.report(hand.trials[5], 81, 1) == "STOP"
    assert hand.statuses()[5:] == ["TERMINATED", "TERMINATED"]


def test_a_trial_that_is_tried_again_goes_back_to_its_bracket():
    hand = ByHand(hyperband(max_t=9), 8)
    members = hand.trials[3:]
    hand.start(*members)
    for trial in members[1:]:
        hand.report(trial, 3, 5)
    hand.fail(members[0], again=True)  # the others were halved when it failed, to 2
    hand.start(*hand.trials[:3], *members[3:])
    assert hand.choose() == "t3"
    assert hand.report(members[0], 3, 9) == "CONTINUE"  # it catches up
    assert hand.report(members[0], 9, 9) == "PAUSE"
    assert hand.scheduler.state()["num_brackets"] == 2


def test_a_bracket_gets_its_number_of_trials_once():
    hand = ByHand(hyperband(max_t=9), 3)
    hand.remove(hand.trials[0])
    hand.add()
    assert hand.scheduler.state()["num_brackets"] == 2


class Unsure:
    """May have more trials."""

    def is_finished(self):
        return False


def test_a_bracket_that_is_not_full_waits_while_more_trials_come():
    hand = ByHand(hyperband(max_t=9), 5, search=Unsure())
    first = hand.trials[:3]
    hand.start(*first)
    assert [hand.report(trial, 3, 1) for trial in hand.trials[3:]] == ["PAUSE", "PAUSE"]
    new = hand.add()
    assert hand.choose() == new.trial_id
    assert hand.report(new, 3, 1) == "PAUSE"
    # The searcher has nothing now: choosing compares three of five, and two of them continue.
    assert hand.choose() == "t4"
    assert hand.statuses()[3:] == ["TERMINATED", "PAUSED", "PAUSED"]
    assert [hand.report(trial, 9, 1) for trial in first] == ["PAUSE", "PAUSE", "STOP"]


def test_the_bracket_that_has_come_least_far_is_served_first_within_a_round():
    hand = ByHand(hyperband(max_t=9), 3 + 5 + 9 + 1)
    first, second = hand.trials[0], hand.trials[3]
    assert hand.choose() == "t0"
    hand.report(first, 1, 1)
    assert hand.choose() == "t3"  # 1 of 27, 0 of 27, 0 of 26
    hand.report(second, 0.5, 1)
    assert hand.choose() == "t8"
    hand.report(hand.trials[8], 0.25, 1)
    assert hand.choose() == "t9"
    hand.start(*hand.trials[9:17])
    assert hand.choose() == "t4"
    hand.start(*hand.trials[4:8])
    assert hand.choose() == "t1"
    hand.start(*hand.trials[1:3])
    assert hand.choose() == "t17"  # the next round


def test_time_that_goes_backwards_is_caught_up():
    hand = ByHand(hyperband(max_t=9), 8)
    members = hand.trials[3:]
    hand.report(members[0], 3, 9)
    hand.report(members[0], 1, 9)  # started again without a checkpoint
    for trial in members[1:]:
        assert hand.report(trial, 3, 1) == "PAUSE"
    assert hand.report(members[0], 3, 9) == "CONTINUE"


# The hangs of the reference


def test_hang_1_members_that_are_still_saving_are_stopped_with_the_paused_ones():
    hand, first, _ = bracket_of_four()
    hand.saves_slowly = True
    assert [hand.report(trial, 8, 1) for trial in first] == ["PAUSE"] * 3 + ["STOP"]
    assert hand.statuses()[:4] == ["TERMINATED"] * 4


def test_a_survivor_that_is_still_saving_goes_on_when_it_rests():
    hand, first, second = bracket_of_four()
    hand.saves_slowly = True
    assert [hand.report(trial, 4, -index) for index, trial in enumerate(second)][-1] == "STOP"
    assert hand.choose() is None
    hand.rest(second[1])
    assert hand.choose() == second[1].trial_id
    hand.rest(second[0])
    assert hand.choose() == second[0].trial_id
    assert all(trial.status == "RUNNING" for trial in first)


def test_hang_2_survivors_past_the_next_milestone_are_halved_until_one_has_something_to_do():
    hand = ByHand(hyperband(), 143)
    members = hand.trials[-81:]
    # The best nine ran on to 9 and beyond, the others stand at 1.
    decisions = [hand.report(trial, 9 if index >= 72 else 1, index) for index, trial in enumerate(members)]
    assert set(decisions[:-1]) == {"PAUSE"}
    assert decisions[-1] == "PAUSE"  # 27 continue to 3; the nine that are past it wait for them
    live = [trial for trial in members if not trial.is_finished()]
    assert live == members[-27:]
    for trial in members[54:71]:
        assert hand.report(trial, 3, 0) == "PAUSE"
    hand.report(members[71], 3, 0)  # 9 are left, all at the milestone 9 already: halved again, to 3
    assert [trial for trial in members if not trial.is_finished()] == members[-3:]
    hand.start(*hand.trials[:62])
    assert hand.choose() == members[-3].trial_id


def test_hang_3_and_4_every_removal_is_followed_up_also_after_the_first_halving():
    hand, _, second = bracket_of_four()
    for index, trial in enumerate(second):
        hand.report(trial, 4, index)
    hand.start(second[2])
    assert hand.report(second[2], 8, 1) == "PAUSE"
    hand.complete(second[3])  # it ended by itself before 8: the other is the last one, and done
    assert hand.statuses()[4:] == ["TERMINATED"] * 4


def test_hang_5_nan_is_the_worst():
    hand = ByHand(hyperband(max_t=9), 8)
    scores = [NAN, 1.0, NAN, -math.inf, NAN]
    for trial, score in zip(hand.trials[3:], scores, strict=True):
        hand.report(trial, 3, score)
    assert [trial.trial_id for trial in hand.trials[3:] if not trial.is_finished()] == ["t4", "t6"]


@pytest.mark.conformance("C-154")
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_scores_that_are_no_numbers_never_stop_the_experiment_from_ending(mode, value):
    scheduler = hyperband(max_t=9, mode=mode)
    fleet = Fleet(scheduler, Search(20), lambda name, time: value, workers=3).run()
    assert set(fleet.statuses().values()) == {"TERMINATED"}
    assert max(fleet.time.values()) == 9


def test_a_trial_paused_by_somebody_else_goes_on_when_nothing_runs():
    hand = ByHand(hyperband(max_t=9), 1)
    hand.report(hand.trials[0], 1, 1)
    hand.rest(hand.trials[0])
    assert hand.choose() == "t0"


def test_a_paused_trial_that_it_never_heard_of_goes_on_when_nothing_runs():
    hand = ByHand(hyperband(max_t=9), 1)
    hand.report(hand.trials[0], 1, 1)
    hand.rest(hand.trials[0])
    hand.scheduler = hyperband(max_t=9)
    assert hand.choose() == "t0"


def test_a_trial_that_ran_and_waits_again_after_a_restore_does_not_wait_for_the_new_ones():
    hand = ByHand(hyperband(max_t=9), 8)
    ran = hand.trials[4]
    hand.report(ran, 1, 1)
    hand.start(hand.trials[0])
    hand.index.move(ran, TrialState.PENDING)
    hand.index.pending = {ran.trial_id: ran, **hand.index.pending}
    assert hand.choose() == "t4"


# State, parameters, errors


def test_a_restored_scheduler_is_the_same_at_every_step():
    def fleet():
        return Fleet(
            hyperband(max_t=9), Search(25), lambda name, time: float((int(name[1:]) * 7 + time) % 11), 3
        )

    steady, moved = fleet(), fleet()
    while steady.step() | moved.step():
        state = moved.scheduler.save_state()
        assert state == steady.scheduler.save_state()
        assert json.loads(state)["kind"] == "hyperband"
        moved.scheduler = HyperBandScheduler()
        moved.scheduler.restore_state(state, moved.index.trials)
        assert moved.scheduler.save_state() == state
        assert moved.scheduler.debug_string() == steady.scheduler.debug_string()
    assert (moved.jobs, moved.decisions) == (steady.jobs, steady.decisions)


def test_where_failed_trials_belong_is_saved_too():
    hand = ByHand(hyperband(max_t=9), 8)
    hand.start(hand.trials[7], hand.trials[4])
    hand.fail(hand.trials[7])
    hand.fail(hand.trials[4])
    again = HyperBandScheduler()
    again.restore_state(hand.scheduler.save_state())
    assert again.save_state() == hand.scheduler.save_state()
    hand.scheduler = again
    again.on_trial_add(hand.view, hand.trials[7])
    assert again.state()["num_brackets"] == 2


def test_a_pickled_scheduler_and_a_subclass_keep_their_state():
    class Mine(HyperBandScheduler):
        pass

    for kind in (HyperBandScheduler, Mine):
        hand = ByHand(kind(metric="score", mode="max", max_t=9), 8)
        hand.report(hand.trials[3], 3, 1)
        again = kind(max_t=9)
        again.restore_state(hand.scheduler.save_state(), hand.index.trials)
        assert again.debug_string() == hand.scheduler.debug_string()
    stock = ByHand(hyperband(max_t=9), 8).scheduler
    assert pickle.loads(pickle.dumps(stock)).save_state() == stock.save_state()


def test_a_state_of_another_scheduler_is_refused():
    with pytest.raises(RestoreError, match="hyperband"):
        from muster.tune.schedulers import HyperBandForBOHB

        HyperBandForBOHB().restore_state(hyperband().save_state())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_t": 0.5}, "HyperBandScheduler: max_t is 0.5; it must be at least 1"),
        ({"max_t": NAN}, "HyperBandScheduler: max_t is nan; it must be at least 1"),
        ({"max_t": math.inf}, "HyperBandScheduler: max_t is inf; it must be at least 1"),
        ({"reduction_factor": 1}, "HyperBandScheduler: reduction_factor is 1; it must be greater than 1"),
        ({"mode": "best"}, "HyperBandScheduler: mode is 'best'; it must be 'min' or 'max'"),
    ],
)
def test_impossible_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        hyperband(**parameters)


def test_an_unknown_parameter_is_refused():
    with pytest.raises(TypeError, match="grace_period"):
        HyperBandScheduler(grace_period=1)


@pytest.mark.parametrize("given", [{"metric": None}, {"mode": None}])
def test_metric_and_mode_are_needed(given):
    with pytest.raises(ValueError, match="HyperBandScheduler"):
        ByHand(hyperband(**given), 1)


def test_a_result_without_time_is_an_error_that_names_it():
    hand = ByHand(hyperband(time_attr="steps"), 1)
    with pytest.raises(TuneError, match=r"HyperBandScheduler.*t0.*steps.*training_it"):
        hand.report(hand.trials[0], 1, 1)


def test_a_result_without_the_metric_is_an_error_only_where_trials_are_compared():
    hand = ByHand(hyperband(metric="loss", max_t=9), 8)
    assert hand.report(hand.trials[3], 2, 1) == "CONTINUE"
    with pytest.raises(TuneError, match=r"HyperBandScheduler.*t3.*loss"):
        hand.report(hand.trials[3], 3, 1)
    hand.report(hand.trials[4], 1, 1, loss=5)
    assert hand.report(hand.trials[4], 3, 1) == "PAUSE"  # by the last value it did report


def test_a_metric_that_is_no_number_is_an_error_that_names_it():
    hand = ByHand(hyperband(), 1)
    with pytest.raises(TuneError, match=r"t0.*good"):
        hand.report(hand.trials[0], 1, "good")


def test_results_are_not_to_be_buffered():
    assert not hyperband().supports_buffered_results


def test_numpy_parameters_and_a_reduction_factor_just_above_one_work():
    numpy = pytest.importorskip("numpy")
    scheduler = hyperband(max_t=numpy.int64(4), reduction_factor=numpy.float64(1.3))
    fleet = Fleet(scheduler, Search(30), lambda name, time: 1.0, workers=3).run()
    assert set(fleet.statuses().values()) == {"TERMINATED"}
    assert json.loads(scheduler.save_state())["state"]["parameters"]["max_t"] == 4
