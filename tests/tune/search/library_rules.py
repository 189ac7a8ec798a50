"""What every adapter of a search library must do; each test file makes a subclass with its own searcher."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tune.search.searchers import drawn_domains, is_inside

from muster.errors import TuneError
from muster.trials.template import TrialTemplate
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.searcher import Searcher, SearcherNotReady
from muster.tune.search.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qrandint,
    quniform,
    randint,
    sample_from,
    uniform,
)

FULL = {
    "x": uniform(-1, 1),
    "n": {"lr": loguniform(1e-4, 1e-1), "k": randint(1, 9)},
    "kind": choice(["a", "b", (1, 2)]),
    "const": 7,
}
LINEAR = {"x": uniform(-1, 1), "n": {"k": randint(1, 9)}, "kind": choice(["a", "b", (1, 2)]), "const": 7}
FLOATS = {"x": uniform(-1, 1), "n": {"y": uniform(0, 5)}, "const": 7}
POINTS = {
    "x": [0.25, -0.5, 1.0],
    "lr": [0.01, 0.001, 0.05],
    "k": [2, 8, 1],
    "y": [1.5, 0.0, 5.0],
    "kind": ["b", (1, 2), "a"],
}


def point(space, index):
    """The variables of the space, with values of POINTS."""
    return {
        key: point(value, index) if isinstance(value, dict) else POINTS[key][index]
        for key, value in space.items()
        if key != "const"
    }


def flat_numbers(config):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat_numbers(value)
        elif key == "kind":
            yield 0.0 if value == "a" else 1.0
        else:
            yield float(value)


def loss(config):
    return sum(number**2 for number in flat_numbers(config))


def generator(searcher, space, mode="min", samples=100):
    made = SearchGenerator(searcher)
    assert made.set_search_properties("loss", mode, space)
    made.add_configurations(TrialTemplate(trainable_name="t", param_space=space, num_samples=samples))
    return made


class LibraryRules:
    """Subclasses: `space` (FULL, LINEAR or FLOATS), `make(**options)`, and what their library is slow at."""

    space = FULL
    space_parameter = "space"
    suggests_constants = False  # of a space that the constructor got
    steps = 30
    examples = 15
    at_a_time = 2
    refusal: str | None = None  # what a library says of spaces that are too much for it

    def make(self, **options) -> Searcher:
        raise NotImplementedError

    def make_again(self) -> Searcher:
        """A searcher for a saved state; one that does not save its space gets it as in a restore."""
        return self.make()

    def step(self, made, live, number):
        """`at_a_time` trials run at a time; every fifth fails and every seventh reports NaN."""
        trial = made.next_trial()
        if trial is not None:
            live.append(trial)
        if live and (len(live) == self.at_a_time or trial is None):
            done = live.pop(number % len(live))
            result = {"loss": math.nan if number % 7 == 6 else loss(done.config)}
            made.on_trial_complete(done.trial_id, None if number % 5 == 4 else result, number % 5 == 4)
        return trial and (trial.trial_id, trial.config)

    # Space, metric and mode.

    def test_a_grid_is_refused(self):
        with pytest.raises(ValueError, match=r"grid_search.*n/g"):
            generator(self.make(), {"x": uniform(0, 1), "n": {"g": grid_search([1, 2])}})

    def test_a_function_and_a_key_with_a_slash_are_refused(self):
        with pytest.raises(ValueError, match=r"Function\(.*'f'"):
            self.make(**{self.space_parameter: {"x": uniform(0, 1), "f": sample_from(lambda: 1)}})
        with pytest.raises(ValueError, match="'f'"):  # of an experiment, without its constants
            generator(self.make(), {"x": uniform(0, 1), "f": {"eval": "1"}})
        with pytest.raises(ValueError, match="a/b"):
            generator(self.make(), {"a/b": uniform(0, 1)})

    def test_without_a_space_or_a_mode_it_cannot_suggest(self):
        with pytest.raises(SearcherNotReady, match="`param_space`"):
            self.make(metric="loss", mode="min").suggest("a")
        made = self.make(**{self.space_parameter: {"x": uniform(0, 1)}})
        with pytest.raises(SearcherNotReady, match=r"`metric`.*`mode`"):
            made.suggest("a")

    def test_a_space_of_the_constructor_is_converted_with_a_warning_and_kept(self, caplog):
        made = self.make(**{self.space_parameter: self.space})
        assert type(made).__name__ in caplog.text
        assert made.set_search_properties("loss", "min", {"other": uniform(0, 1)}) is False
        assert set(made.suggest("a")) == set(self.space) - (set() if self.suggests_constants else {"const"})

    def test_mode_without_metric_uses_the_default_metric(self):
        made = self.make(**{self.space_parameter: self.space}, mode="max")
        made.suggest("a")
        assert made.metric == "_metric"

    def test_a_constant_space_is_a_runtime_error(self):
        with pytest.raises(RuntimeError, match=r"\{'const': 7\}"):
            generator(self.make(), {"const": 7})

    def test_a_list_of_metrics_is_refused(self):
        with pytest.raises(ValueError, match=r"\['a', 'b'\].*OptunaSearch"):
            self.make(**{self.space_parameter: self.space}, metric=["a", "b"], mode=["min", "max"])

    # Suggestions.

    def test_suggestions_have_the_shape_of_the_space_and_stay_in_bounds(self):
        made = self.make()
        made.set_search_properties("loss", "max", self.space)
        for number in range(12):
            found = made.suggest(f"t{number}")
            if found is None:
                break
            assert is_inside(found, self.space), found
            assert made.suggest(f"t{number}") == found  # asked again: the same answer
            made.on_trial_complete(f"t{number}", {"loss": loss(found)})

    def test_bounds_of_random_spaces(self):
        kinds = [uniform, quniform]
        if self.space is not FLOATS:
            kinds += [randint, qrandint, choice]
        if self.space is FULL:
            kinds += [loguniform, lograndint]

        @settings(
            max_examples=self.examples,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(st.dictionaries(st.sampled_from("abcd"), drawn_domains(kinds), min_size=1))
        def check(space):
            made = self.make()
            try:
                made.set_search_properties("loss", "min", space)
            except ValueError as error:
                assert self.refusal is not None, error
                assert self.refusal in str(error)
                return
            for number in range(6):
                found = made.suggest(str(number))
                if isinstance(found, dict):
                    assert is_inside(found, space, with_steps=False), (found, space)
                    made.on_trial_complete(str(number), {"loss": number % 3})

        check()

    def losses(self, sign, mode):
        made = generator(self.make(), self.space, mode)
        found = []
        for _ in range(self.steps):
            trial = made.next_trial()
            if trial is None:
                break
            found.append(loss({key: value for key, value in trial.config.items() if key != "const"}))
            made.on_trial_complete(trial.trial_id, {"loss": sign * found[-1]})
        return found[len(found) // 2 :]

    def test_it_learns_in_both_modes(self):
        low, high = self.losses(1, "min"), self.losses(1, "max")
        assert sum(low) / len(low) < 0.7 * sum(high) / len(high)
        assert self.losses(-1, "max") == low

    def test_nan_inf_errors_and_unknown_trials_do_not_break_it(self):
        made = self.make()
        made.set_search_properties("loss", "min", self.space)
        made.on_trial_complete("nobody", {"loss": 1})
        made.on_trial_result("nobody", {"loss": 1})
        results = [{"loss": math.nan}, {"loss": math.inf}, {"loss": -math.inf}, {"loss": "?"}, {}, None]
        asked = 0
        for number in range(24):
            found = made.suggest(f"t{number}")
            if isinstance(found, dict):
                asked += 1
                assert is_inside(found, self.space)
                result = results[number % 8] if number % 8 < 6 else {"loss": loss(found)}
                made.on_trial_complete(f"t{number}", result, error=result is None)
                made.on_trial_complete(f"t{number}", result)
        assert asked >= 20

    # Points.

    def test_points_come_first(self):
        points = [point(self.space, index) for index in range(3)]
        made = self.make(points_to_evaluate=points)
        made.set_search_properties("loss", "min", self.space)
        found = [made.suggest(f"t{index}") for index in range(3)]
        assert [list(flat_numbers(one)) for one in found] == [
            pytest.approx(list(flat_numbers(one))) for one in points
        ]
        assert all(is_inside(one, self.space) for one in found)

    def test_a_point_that_is_not_in_the_space_is_a_value_error(self):
        for bad in ({}, {**point(self.space, 0), "x": 3.0}, {**point(self.space, 0), "x": "?"}):
            made = self.make(points_to_evaluate=[bad])
            made.set_search_properties("loss", "min", self.space)
            with pytest.raises(ValueError, match=r"'x' |lacks x"):
                made.suggest("a")

    def test_evaluated_points_wait_for_the_space_and_those_outside_are_left_out(self, caplog):
        made, plain = self.make(), self.make()
        for searcher in (made, plain):
            if searcher is made:
                for index in range(3):
                    made.add_evaluated_point(point(self.space, index), 1.0 + index)
                made.add_evaluated_point({**point(self.space, 0), "x": 3.0}, 1.0)
                made.add_evaluated_point(point(self.space, 1), math.nan)
                made.add_evaluated_point(point(self.space, 1), None, error=True)
            searcher.set_search_properties("loss", "min", self.space)
        made.add_evaluated_point(point(self.space, 2), 0.5)
        assert caplog.text.count("an evaluated point is left out") == 1
        assert is_inside(made.suggest("a"), self.space)

    # State.

    def test_a_restored_one_goes_on_as_the_saved_one_at_every_step(self):
        points = [point(self.space, index) for index in range(2)]
        straight = generator(self.make(points_to_evaluate=points), self.space)
        saved, live, seen = [], [], []
        for number in range(self.steps):
            saved.append((straight.save_state(), list(live)))
            seen.append(self.step(straight, live, number))
        assert len({str(one) for one in seen}) > self.steps // 2
        for number in range(0, self.steps - 3, 3):
            again = SearchGenerator(self.make_again())
            again.add_configurations(
                TrialTemplate(trainable_name="t", param_space=self.space, num_samples=100)
            )
            again.restore_state(saved[number][0])
            left = list(saved[number][1])
            assert [self.step(again, left, number + more) for more in range(3)] == seen[
                number : number + 3
            ], number

    def test_an_answer_of_none_leaves_no_trace(self):
        made = self.make()
        made.set_search_properties("loss", "min", self.space)
        live = {}
        for number in range(40):
            found = made.suggest(f"t{number}")
            if found is None:
                break
            live[f"t{number}"] = found
        other = self.make_again()
        other.restore_state(made.save_state())
        for _ in range(3):
            if len(live) < 40:
                assert made.suggest("later") is None
        for searcher in (made, other):
            for name, config in live.items():
                searcher.on_trial_complete(name, {"loss": loss(config)})
        assert made.suggest("next") == other.suggest("next")

    def test_the_users_random_stream_is_left_alone(self):
        import numpy as np

        made = self.make()
        made.set_search_properties("loss", "min", self.space)
        np.random.seed(3)
        expected = np.random.RandomState(3).rand()
        for number in range(8):
            found = made.suggest(f"t{number}")
            if found is not None:
                made.on_trial_complete(f"t{number}", {"loss": loss(found)})
        assert np.random.rand() == expected

    def test_a_state_of_another_searcher_is_refused(self):
        from muster.errors import RestoreError
        from muster.tune.search.searcher import pickled, restore_searcher

        with pytest.raises(RestoreError, match=r"\bOther\b"):
            restore_searcher(self.make(), pickled({"searcher": "Other", "attributes": {}}))

    def test_an_error_names_the_searcher(self):
        made = generator(self.make(points_to_evaluate=[{"x": "?"}]), self.space)
        with pytest.raises(TuneError, match=f"{type(made.searcher).__name__}.*ValueError"):
            made.next_trial()
