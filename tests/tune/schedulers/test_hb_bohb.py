"""HyperBand for BOHB: largest bracket first, budgets for the searcher, pauses it hears of."""

import math

import pytest
from tests.mistakes.views import assert_view
from tests.tune.schedulers.by_hand import ByHand, EndedSearch

from muster.sim.tune.experiment import SimulatedExperiment
from muster.tune.schedulers import HyperBandForBOHB
from muster.tune.search import ConcurrencyLimiter, Searcher


class Listener:
    def __init__(self):
        self.heard = []

    def on_pause(self, trial_id):
        self.heard.append(("pause", trial_id))

    def on_unpause(self, trial_id):
        self.heard.append(("unpause", trial_id))


def bohb(**parameters):
    return HyperBandForBOHB(**{"metric": "score", "mode": "max", **parameters})


def by_hand(count, **parameters):
    search = EndedSearch()
    search.searcher = Listener()
    return ByHand(bohb(**parameters), count, search)


@pytest.mark.conformance("C-163")
def test_the_largest_bracket_comes_first():
    hand = by_hand(81 + 34 + 15 + 8 + 5 + 1)
    assert_view("schedulers/bohb_rounds", hand.scheduler.debug_string())
    assert hand.choose() == "t0"


def test_three_trials_fill_the_largest_bracket_of_max_t_3():
    hand = by_hand(3, max_t=3)
    assert hand.scheduler.state()["num_brackets"] == 1
    hand.add()
    assert hand.scheduler.state()["num_brackets"] == 2


def test_a_bracket_whose_first_milestone_would_be_0_is_left_out():
    assert by_hand(35, max_t=60).scheduler.state()["num_brackets"] == 3  # none of 81, 34 from 2 on, 15


def test_brackets_are_served_in_their_order_however_far_they_have_come():
    hand = by_hand(9 + 5, max_t=9)
    hand.report(hand.trials[0], 0.5, 1)
    assert hand.choose() == "t1"


@pytest.mark.conformance("C-163")
def test_results_carry_the_budget_where_trials_are_compared():
    hand = by_hand(3, max_t=9)
    first = {"training_iteration": 0.5, "score": 1.0}
    at_rung = {"training_iteration": 1, "score": 1.0}
    beyond = {"training_iteration": 5, "score": 1.0}
    hand.start(*hand.trials)
    for trial, result in zip(hand.trials, (first, at_rung, beyond), strict=True):
        hand.scheduler.on_trial_result(hand.view, trial, result)
    assert [one["hyperband_info"] for one in (first, at_rung, beyond)] == [{}, {"budget": 1}, {"budget": 1}]


def test_the_budgets_of_a_whole_band_are_those_of_its_milestones():
    budgets = {}

    class Watched(HyperBandForBOHB):
        def on_trial_result(self, tune_controller, trial, result):
            decision = super().on_trial_result(tune_controller, trial, result)
            if result["hyperband_info"]:
                budgets.setdefault(trial.trial_id, []).append(result["hyperband_info"]["budget"])
            return decision

    SimulatedExperiment(
        curve=lambda config, t: {"score": 1.0},
        space={},
        metric="score",
        mode="max",
        num_samples=143,
        make_scheduler=Watched,
        workers=4,
    ).run()
    counts = {}
    for told in budgets.values():
        counts[tuple(told)] = counts.get(tuple(told), 0) + 1
    assert counts == {
        (1,): 54,
        (1, 3): 18,
        (1, 3, 9): 6,
        (1, 3, 9, 27): 2,
        (1, 3, 9, 27, 81): 1,
        (3,): 22,
        (3, 9): 8,
        (3, 9, 27): 2,
        (3, 9, 27, 81): 2,
        (9,): 10,
        (9, 27): 3,
        (9, 27, 81): 2,
        (27,): 5,
        (27, 81): 3,
        (81,): 5,
    }


@pytest.mark.conformance("C-163")
def test_the_searcher_hears_of_pauses_and_of_who_goes_on():
    # mode min: the first two pause, the third is the worst and stops, the first continues.
    hand = by_hand(3, max_t=3, mode="min")
    assert [hand.report(trial, 1, index) for index, trial in enumerate(hand.trials)] == [
        "PAUSE",
        "PAUSE",
        "STOP",
    ]
    assert hand.choose() == "t0"
    assert hand.view.search_alg.searcher.heard == [("pause", "t0"), ("pause", "t1"), ("unpause", "t0")]


def test_a_trial_that_goes_on_at_once_was_never_paused():
    hand = by_hand(3, max_t=3)
    assert [hand.report(trial, 1, index) for index, trial in enumerate(hand.trials)] == [
        "PAUSE",
        "PAUSE",
        "CONTINUE",
    ]
    assert hand.view.search_alg.searcher.heard == [("pause", "t0"), ("pause", "t1")]


@pytest.mark.parametrize("search", [None, EndedSearch(), object()])
def test_searchers_that_do_not_care_and_controllers_without_one_are_fine(search):
    hand = ByHand(bohb(max_t=3), 3, search or EndedSearch())
    hand.view.search_alg = search
    assert [hand.report(trial, 1, 1) for trial in hand.trials][-1] == "CONTINUE"


def test_the_last_result_of_a_stopped_trial_carries_its_budget_to_the_searcher():
    hand = by_hand(3, max_t=3, mode="min")
    *_, last = hand.trials
    for index, trial in enumerate(hand.trials[:2]):
        hand.report(trial, 1, index)
    hand.start(last)
    result = {"training_iteration": 1, "score": 5.0}
    assert hand.scheduler.on_trial_result(hand.view, last, result) == "STOP"
    state = hand.scheduler.save_state()
    for scheduler in (hand.scheduler, HyperBandForBOHB()):
        scheduler.restore_state(state)
        final = {"training_iteration": 1, "score": 5.0, "done": True}
        scheduler.on_trial_complete(hand.view, last, final)
        assert final["hyperband_info"] == {"budget": 1}
    ended = {"training_iteration": 2, "score": 5.0}
    hand.scheduler.on_trial_complete(hand.view, hand.trials[0], ended)  # by itself: no budget was reached
    assert "hyperband_info" not in ended


def test_a_criterion_that_ends_a_trial_at_its_milestone_first_does_not_hide_the_budget():
    hand = by_hand(3, max_t=9)
    hand.start(*hand.trials)
    ends = [{"training_iteration": time, "score": 5.0, "done": True} for time in (0.5, 1)]
    for trial, end in zip(hand.trials, ends, strict=False):
        hand.scheduler.on_trial_complete(hand.view, trial, end)
    assert [end.get("hyperband_info") for end in ends] == [None, {"budget": 1}]


def test_beyond_the_last_milestone_the_budget_is_told_once():
    hand = by_hand(9 + 5 + 1, max_t=9, stop_last_trials=False)
    told = []
    hand.start(hand.trials[-1])
    for time in (8, 9, 10, 11):
        result = {"training_iteration": time, "score": 1.0}
        assert hand.scheduler.on_trial_result(hand.view, hand.trials[-1], result) == "CONTINUE"
        told.append(result["hyperband_info"])
    assert told == [{}, {"budget": 9}, {}, {}]


@pytest.mark.conformance("C-163")
def test_a_bracket_that_is_not_full_is_compared_only_when_nothing_runs():
    hand = by_hand(3, max_t=9)  # of nine
    a, b, c = hand.trials
    hand.start(a, b, c)
    assert [hand.report(a, 1, 1), hand.report(b, 1, 2)] == ["PAUSE", "PAUSE"]
    assert hand.choose() is None  # t2 runs
    assert hand.report(c, 5, 3) == "PAUSE"
    assert hand.choose() == "t0"  # all three continue to 3, where t2 is already
    assert hand.scheduler.choose_trial_to_run(hand.view, allow_recurse=False).trial_id == "t0"
    hand.start(a)
    assert hand.choose() == "t1"
    assert hand.report(a, 3, 1) == "PAUSE"
    # Three of three: it counts as full now. One of them continues, the best.
    assert hand.report(b, 3, 2) == "STOP"
    assert hand.choose() == "t2"
    assert hand.statuses() == ["TERMINATED", "TERMINATED", "PAUSED"]


def test_a_trial_that_choosing_has_stopped_is_not_chosen():
    hand = by_hand(9 + 5 + 1, max_t=9)
    for trial in hand.trials[:14]:
        hand.remove(trial)
    assert hand.report(hand.trials[14], 9, 1) == "PAUSE"  # one of three
    assert hand.scheduler.choose_trial_to_run(hand.view) is None
    assert hand.choose() is None
    assert hand.statuses() == ["TERMINATED"] * 15


def test_without_allow_recurse_nothing_is_compared_early():
    hand = by_hand(1, max_t=9)
    hand.report(hand.trials[0], 1, 1)
    assert hand.scheduler.choose_trial_to_run(hand.view, allow_recurse=False) is None
    assert hand.choose() == "t0"


def test_a_checkpoint_that_is_still_being_written_is_waited_for():
    hand = by_hand(2, max_t=9)
    hand.saves_slowly = True
    hand.report(hand.trials[0], 1, 1)
    hand.report(hand.trials[1], 1, 1)
    hand.rest(hand.trials[0])
    assert hand.choose() is None
    hand.rest(hand.trials[1])
    assert hand.choose() == "t0"


def test_metric_and_mode_are_needed():
    with pytest.raises(ValueError, match="HyperBandForBOHB"):
        ByHand(HyperBandForBOHB(), 1)


def test_nan_in_every_result_ends_by_itself():
    life = SimulatedExperiment(
        curve=lambda config, t: {"score": math.nan},
        space={},
        metric="score",
        mode="max",
        num_samples=20,
        make_scheduler=lambda: HyperBandForBOHB(max_t=9),
        workers=3,
        max_concurrent=4,
    ).run()
    assert {trial.status for trial in life.state.trials.values()} == {"TERMINATED"}


class Thoughtful(Searcher):
    """Notes what a BOHB searcher would learn."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.asked, self.heard = 0, []

    def suggest(self, trial_id):
        self.asked += 1
        return {"x": self.asked}

    def on_trial_result(self, trial_id, result):
        if result["hyperband_info"]:
            self.heard.append(("result", trial_id, result["hyperband_info"]["budget"]))

    def on_trial_complete(self, trial_id, result=None, error=False):
        if result and result.get("hyperband_info"):
            self.heard.append(("end", trial_id, result["hyperband_info"]["budget"]))

    def on_pause(self, trial_id):
        self.heard.append(("pause", trial_id))

    def on_unpause(self, trial_id):
        self.heard.append(("unpause", trial_id))


@pytest.mark.parametrize("limit", [0, 2])
def test_a_searcher_in_a_run_learns_every_trial_at_every_budget_it_reached(limit):
    made = []

    def make_search():
        made.append(Thoughtful())
        return ConcurrencyLimiter(made[-1], max_concurrent=limit) if limit else made[-1]

    life = SimulatedExperiment(
        curve=lambda config, t: {"score": config["x"] + t / 100},
        space={},
        metric="score",
        mode="max",
        num_samples=9 + 5,
        make_scheduler=lambda: HyperBandForBOHB(max_t=9),
        make_search=make_search,
        workers=3,
    ).run()
    assert {trial.status for trial in life.state.trials.values()} == {"TERMINATED"}
    heard = made[-1].heard
    learned = [one[1:] for one in heard if one[0] in ("result", "end")]
    assert len(set(learned)) == len(learned)
    for trial in life.state.trials.values():
        reached = trial.last_result["training_iteration"]
        assert max(budget for name, budget in learned if name == trial.trial_id) == reached
    pauses = [one[1] for one in heard if one[0] == "pause"]
    unpauses = [one[1] for one in heard if one[0] == "unpause"]
    assert set(unpauses) <= set(pauses)
    assert len(unpauses) < len(pauses)
