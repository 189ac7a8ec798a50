"""Check each stopper that comes with muster at exact values."""

import math
import pickle
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.base.clock import ManualClock
from muster.errors import RestoreError
from muster.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)
from muster.tune.stopper.trial_plateau import spread

NAN = math.nan


def stopped_at(stopper, values, trial_id="t"):
    """The number of the first result that ends the trial."""
    return next((n for n, value in enumerate(values, 1) if stopper(trial_id, {"m": value})), None)


def restored(fresh, stopper):
    fresh.restore_state(stopper.save_state())
    return fresh


class TestNoop:
    def test_it_never_stops(self):
        assert (NoopStopper()("t", {}), NoopStopper().stop_all()) == (False, False)
        assert restored(NoopStopper(), NoopStopper()).stop_all() is False


class TestFunction:
    def test_the_function_decides_about_trials_only(self):
        stopper = FunctionStopper(lambda trial_id, result: trial_id == "a" and result["m"] > 1)
        assert [stopper("a", {"m": 2}), stopper("a", {"m": 1}), stopper("b", {"m": 2})] == [
            True,
            False,
            False,
        ]
        assert stopper.stop_all() is False

    def test_a_stopper_is_no_function(self):
        with pytest.raises(ValueError, match=r"^FunctionStopper: .*NoopStopper"):
            FunctionStopper(NoopStopper())

    def test_something_that_only_looks_like_a_stopper_is_told_how_to_become_one(self):
        class Almost:
            def __call__(self, trial_id, result):
                return False

            def stop_all(self):
                return False

        with pytest.raises(ValueError, match=r"stop_all\b.*muster\.tune\.Stopper"):
            FunctionStopper(Almost())


class TestMaximumIteration:
    @pytest.mark.conformance("C-192")
    def test_each_trial_ends_with_its_own_nth_result(self):
        stopper = MaximumIterationStopper(3)
        assert [stopper("a", {}) for _ in range(4)] == [False, False, True, True]
        assert [stopper("b", {}) for _ in range(3)] == [False, False, True]
        assert stopper.stop_all() is False

    def test_counts_survive_and_the_limit_may_be_raised_on_resume(self):
        stopper = MaximumIterationStopper(3)
        assert [stopper("a", {}) for _ in range(2)] == [False, False]
        for again in (restored(MaximumIterationStopper(3), stopper), pickle.loads(pickle.dumps(stopper))):
            assert again("a", {}) is True
        assert [restored(MaximumIterationStopper(4), stopper)("a", {}) for _ in range(1)] == [False]


class TestCombined:
    def test_any_stopper_may_stop(self):
        stopper = CombinedStopper(
            MaximumIterationStopper(3), FunctionStopper(lambda trial_id, result: result["m"])
        )
        assert stopped_at(stopper, [False, False, False]) == 3
        assert stopped_at(stopper, [True], "u") == 1
        assert CombinedStopper(NoopStopper(), TimeoutStopper(0)).stop_all() is True
        assert CombinedStopper(NoopStopper()).stop_all() is False

    def test_nobody_is_asked_after_the_first_yes(self):
        late = MaximumIterationStopper(1)
        stopper = CombinedStopper(FunctionStopper(lambda trial_id, result: result["m"]), late)
        assert stopper("t", {"m": True}) is True
        assert late.save_state() == MaximumIterationStopper(1).save_state()

    def test_the_states_of_its_members_are_its_state(self):
        class Own(Stopper):
            seen = 0

            def __call__(self, trial_id, result):
                self.seen += 1
                return self.seen >= 3

            def stop_all(self):
                return False

        stopper = CombinedStopper(MaximumIterationStopper(5), Own())
        assert stopped_at(stopper, [0, 0]) is None
        again = restored(CombinedStopper(MaximumIterationStopper(5), Own()), stopper)
        assert stopped_at(again, [0, 0, 0]) == 1
        assert stopped_at(stopper, [0, 0, 0]) == 1

    def test_another_number_of_members_cannot_be_restored(self):
        with pytest.raises(RestoreError, match=r"^CombinedStopper: 2 .*\b1;"):
            restored(CombinedStopper(NoopStopper()), CombinedStopper(NoopStopper(), NoopStopper()))

    def test_members_must_be_stoppers(self):
        with pytest.raises(ValueError, match="FunctionStopper"):
            CombinedStopper(lambda trial_id, result: True)


class TestTimeout:
    def test_the_budget_runs_from_the_first_question(self):
        clock = ManualClock()
        stopper = TimeoutStopper(10, clock=clock)
        clock.advance(100)
        said = []
        for _ in range(4):
            said.append(stopper.stop_all())
            clock.advance(4)
        assert said == [False, False, False, True]
        assert stopper("t", {}) is False

    def test_a_timedelta_is_a_timeout(self):
        clock = ManualClock()
        stopper = TimeoutStopper(timedelta(minutes=1), clock=clock)
        assert stopper.stop_all() is False
        clock.advance(59)
        assert stopper.stop_all() is False
        clock.advance(1)
        assert stopper.stop_all() is True

    def test_what_is_left_is_known_between_questions(self):
        clock = ManualClock()
        stopper = TimeoutStopper(10, clock=clock)
        both = CombinedStopper(NoopStopper(), TimeoutStopper(99, clock=clock), stopper)
        clock.advance(100)
        left = [stopper._left_s(), both._left_s()]
        both.stop_all()
        clock.advance(4)
        left += [stopper._left_s(), both._left_s()]
        clock.advance(40)
        assert [*left, stopper._left_s()] == [10, 10, 6, 6, 0]
        assert (NoopStopper()._left_s(), CombinedStopper()._left_s()) == (math.inf, math.inf)

    @pytest.mark.parametrize("timeout", [0, -1, 0.0])
    def test_no_budget_is_over_at_once(self, timeout):
        assert TimeoutStopper(timeout).stop_all() is True

    @pytest.mark.parametrize("timeout", ["10", None, True])
    def test_anything_else_is_refused(self, timeout):
        with pytest.raises(ValueError, match=r"^TimeoutStopper: .*datetime\.timedelta"):
            TimeoutStopper(timeout)

    @pytest.mark.conformance("C-190")
    @pytest.mark.parametrize("by_pickle", [True, False])
    def test_the_rest_of_the_budget_survives_and_downtime_is_free(self, by_pickle):
        clock = ManualClock()
        stopper = TimeoutStopper(10, clock=clock)
        stopper.stop_all()
        clock.advance(7)
        assert stopper.stop_all() is False
        again, later = self.moved(stopper, by_pickle)
        later.advance(1000)
        assert again.stop_all() is False
        later.advance(2)
        assert again.stop_all() is False
        later.advance(1)
        assert again.stop_all() is True
        expired, _ = self.moved(again, by_pickle)
        assert expired.stop_all() is True

    def moved(self, stopper, by_pickle):
        if by_pickle:
            again = pickle.loads(pickle.dumps(stopper))
            return again, again._clock
        clock = ManualClock()
        fresh = TimeoutStopper(10, clock=clock)
        fresh.stop_all()
        return restored(fresh, stopper), clock

    def test_setting_the_wall_clock_costs_nothing(self):
        clock = ManualClock()
        stopper = TimeoutStopper(10, clock=clock)
        stopper.stop_all()
        clock.jump(3600)
        assert stopper.stop_all() is False

    def test_the_machines_clock_is_the_default(self):
        assert TimeoutStopper(1000).stop_all() is False
        assert pickle.loads(pickle.dumps(TimeoutStopper(1000))).stop_all() is False


PLATEAUS = [1, 2, 3, *[20] * 6, *[22] * 6]  # flat from result 4 to 9 and from 10 on


class TestTrialPlateau:
    @pytest.mark.conformance("C-191")
    @pytest.mark.parametrize(
        ("parameters", "at"),
        [
            ({}, 7),
            ({"grace_period": 9}, 9),
            ({"metric_threshold": 22, "mode": "max"}, 13),
            ({"metric_threshold": 20, "mode": "max"}, 7),
            ({"metric_threshold": 21, "mode": "min"}, 7),
            ({"metric_threshold": 0, "mode": "min"}, None),
            ({"num_results": 2, "grace_period": 0}, 5),
            ({"num_results": 7, "grace_period": 0, "std": 1.0}, 10),
        ],
    )
    def test_a_trial_ends_at_its_plateau(self, parameters, at):
        assert stopped_at(TrialPlateauStopper("m", **parameters), PLATEAUS) == at

    def test_trials_are_looked_at_one_by_one(self):
        stopper = TrialPlateauStopper("m", num_results=2, grace_period=2)
        said = [
            stopper(name, {"m": value}) for name, value in (("a", 1), ("b", 5), ("a", 1), ("b", 6), ("b", 6))
        ]
        assert said == [False, False, True, False, True]
        assert stopper.stop_all() is False

    def test_nan_is_no_plateau(self):
        assert stopped_at(TrialPlateauStopper("m"), [NAN] * 10) is None

    def test_a_threshold_needs_a_side(self):
        with pytest.raises(ValueError, match=r"metric_threshold.*max"):
            TrialPlateauStopper("m", metric_threshold=1)

    def test_a_missing_metric_is_named(self):
        with pytest.raises(KeyError, match="TrialPlateauStopper"):
            TrialPlateauStopper("m")("t", {"other": 1})

    def test_a_nested_metric_is_found_by_its_flat_name(self):
        stopper = TrialPlateauStopper("a/b", num_results=2, grace_period=2)
        assert [stopper("t", {"a": {"b": 1.0}}) for _ in range(2)] == [False, True]


class TestExperimentPlateau:
    def test_everything_ends_when_the_best_no_longer_move(self):
        stopper = ExperimentPlateauStopper("m", std=0.5, top=3)
        assert stopped_at(stopper, [5.0, 9.0, 1.0, 1.5]) is None
        assert stopper.stop_all() is False
        assert stopped_at(stopper, [9.0, 1.2]) == 2
        assert stopper.stop_all() is True

    def test_large_is_good_in_max_mode(self):
        assert stopped_at(ExperimentPlateauStopper("m", top=2, mode="max"), [1, 5, 1, 2, 3, 5]) == 6

    @pytest.mark.parametrize(("patience", "at"), [(0, 3), (1, 3), (2, 4), (4, 6)])
    def test_patience_counts_results_in_a_row(self, patience, at):
        assert stopped_at(ExperimentPlateauStopper("m", top=3, patience=patience), [1.0] * 10) == at

    def test_a_better_value_starts_the_patience_again(self):
        stopper = ExperimentPlateauStopper("m", top=2, patience=3)
        assert stopped_at(stopper, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]) == 7

    def test_nan_is_never_among_the_best(self):
        assert stopped_at(ExperimentPlateauStopper("m", top=2), [NAN, 1.0, NAN, 1.0]) == 4

    @pytest.mark.conformance("C-193")
    @pytest.mark.parametrize(
        "parameters",
        [
            {"top": 0},
            {"top": 1},
            {"top": "0"},
            {"top": 2.5},
            {"std": 0},
            {"std": -1.0},
            {"std": "0"},
            {"mode": "best"},
            {"patience": -1},
            {"patience": "0"},
        ],
    )
    def test_invalid_arguments_are_refused_by_name(self, parameters):
        with pytest.raises(ValueError, match=f"ExperimentPlateauStopper: {next(iter(parameters))} is"):
            ExperimentPlateauStopper("m", **parameters)

    def test_a_missing_metric_is_named(self):
        with pytest.raises(KeyError, match="ExperimentPlateauStopper"):
            ExperimentPlateauStopper("m")("t", {})

    def test_a_value_that_is_no_number_is_named(self):
        with pytest.raises(ValueError, match="low"):
            ExperimentPlateauStopper("m")("t", {"m": "low"})


def test_restoring_for_another_metric_starts_afresh():
    seen = ExperimentPlateauStopper("m", top=2)
    assert stopped_at(seen, [1.0, 1.0]) == 2
    assert restored(ExperimentPlateauStopper("n", top=2), seen).stop_all() is False
    assert restored(ExperimentPlateauStopper("m", top=2), seen).stop_all() is True


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_spread_is_numpys_standard_deviation(values):
    assert spread(values) == pytest.approx(float(np.std(values)), rel=1e-9, abs=1e-9)


BUILDERS = [
    NoopStopper,
    lambda: MaximumIterationStopper(4),
    lambda: TrialPlateauStopper("m", std=0.6, num_results=3, grace_period=3),
    lambda: ExperimentPlateauStopper("m", std=0.4, top=3, patience=2),
    lambda: CombinedStopper(MaximumIterationStopper(5), ExperimentPlateauStopper("m", top=4, std=0.3)),
]


@given(
    st.sampled_from(BUILDERS),
    st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.integers(0, 3), st.just(NAN))), max_size=30),
    st.integers(0, 30),
    st.booleans(),
)
def test_saving_and_restoring_anywhere_changes_no_later_answer(build, results, at, by_pickle):
    steady, moved = build(), build()
    for count, (trial_id, value) in enumerate(results):
        if count == at:
            moved = pickle.loads(pickle.dumps(moved)) if by_pickle else restored(build(), moved)
        assert moved(trial_id, {"m": value}) == steady(trial_id, {"m": value})
        assert moved.stop_all() == steady.stop_all()
    assert moved.save_state() == steady.save_state()
