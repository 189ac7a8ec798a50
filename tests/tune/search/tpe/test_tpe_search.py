from __future__ import annotations

import math

import pytest
from msgspec import msgpack
from tests.tune.search.library_rules import FULL, LibraryRules, generator, point
from tests.tune.search.searchers import is_inside
from tests.tune.search.tpe.spaces import SPACES, loss

from muster.errors import RestoreError
from muster.tune.search.create import create_searcher
from muster.tune.search.sample import Float
from muster.tune.search.searcher import restore_searcher
from muster.tune.search.space import choice, loguniform, qrandn, quniform, randint, randn, uniform
from muster.tune.search.tpe import TPESearch


class TestRules(LibraryRules):
    steps = 36
    suggests_constants = True

    def make(self, **options):
        return TPESearch(seed=1, n_startup_trials=6, **options)

    def make_again(self):
        made = self.make()
        made.set_search_properties("loss", "min", self.space)
        return made

    def test_a_space_of_the_constructor_is_converted_with_a_warning_and_kept(self, caplog):
        made = self.make(space=self.space)
        assert caplog.text == ""  # it is of its own kind
        assert made.set_search_properties("loss", "min", {"other": uniform(0, 1)}) is False
        assert set(made.suggest("a")) == set(self.space)

    def test_a_list_of_metrics_is_refused(self):
        """It is not."""
        made = self.make(space=self.space, metric=["a", "b"], mode=["min", "obs"])
        assert is_inside({k: v for k, v in made.suggest("a").items() if k != "const"}, self.space)

    def test_a_point_that_is_not_in_the_space_is_a_value_error(self):
        for bad in ({**point(self.space, 0), "x": 3.0}, {**point(self.space, 0), "x": "?"}):
            with pytest.raises(ValueError, match="'x' "):
                self.make(points_to_evaluate=[bad]).set_search_properties("loss", "min", self.space)

    def test_a_state_of_another_searcher_is_refused(self):
        for state in (b"", b"\x80\x04", msgpack.encode({"other": 1}), msgpack.encode({"version": 2})):
            with pytest.raises(RestoreError):
                restore_searcher(self.make(), state)

    def test_an_error_names_the_searcher(self):
        with pytest.raises(ValueError, match="TPESearch"):
            generator(self.make(points_to_evaluate=[{"x": "?"}]), self.space)


def searcher(space, **options):
    made = TPESearch(**{"seed": 1, "n_startup_trials": 6, **options})
    if made.metric is None:
        made.set_search_properties("loss", "min", space)
    return made


def play(made, count, value, start=0):
    found = []
    for number in range(start, start + count):
        found.append(made.suggest(f"t{number}"))
        made.on_trial_complete(f"t{number}", {"loss": value(found[-1])})
    return found


def test_names_and_seed():
    for name in ("auto", "tpe", "TPE"):
        made = create_searcher(name, seed=5)
        assert type(made) is TPESearch
        made.set_search_properties("loss", "min", FULL)
        assert made.suggest("a") == searcher(FULL, seed=5).suggest("a")


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 0.5), ("seed", 2**128), ("n_candidates", 0), ("n_candidates", 2.5)],
)
def test_a_setting_without_meaning_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        TPESearch(**{name: value})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"constraints": {"ms": "fast"}}, "'ms': 'fast'"),
        ({"constraints": {"ms": math.nan}}, "'ms': nan"),
        ({"space": {"a": {"b": choice([])}}}, r"\['b'\]"),
        ({"space": {"a": uniform(2, 1)}}, r"uniform\(2, 1\)"),
        ({"points_to_evaluate": [{"y": 0.5}]}, "'y'"),
        ({"points_to_evaluate": [{"x": 0.5}], "evaluated_rewards": [[1.0, 2.0]]}, "2"),
    ],
)
def test_what_it_cannot_use_is_a_value_error_at_once(options, named):
    with pytest.raises(ValueError, match=named):
        TPESearch(**{"space": {"x": uniform(0, 1)}, "metric": "loss", "mode": "min", **options})


def test_without_a_seed_numpys_global_stream_gives_it():
    import numpy as np

    found = []
    for _ in range(2):
        np.random.seed(4)
        found.append(searcher(FULL, seed=None).suggest("a"))
    assert found[0] == found[1] != searcher(FULL, seed=None).suggest("a")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_a_searcher_restored_at_any_of_sixty_trials_suggests_the_same(name):
    space, goals = SPACES[name]
    metric, mode = ("a", "min") if goals == 1 else (["a", "b"], ["min", "max"])

    def make():
        made = TPESearch(seed=2)
        made.set_search_properties(metric, mode, space)
        made.set_rungs((3.0, 9.0), "training_iteration")
        return made

    def step(made, live, number):
        config = made.suggest(f"t{number}")
        live.append((f"t{number}", config))
        for trial, other in live[-3:]:
            result = dict(zip("ab", loss(other), strict=True))
            made.on_trial_result(trial, {**result, "training_iteration": number % 12})
        if len(live) > 8:
            trial, other = live.pop(number % 8)
            result = dict(zip("ab", loss(other), strict=True)) | {"training_iteration": number % 12}
            stopped = number % 3 == 0
            made.on_trial_complete(
                trial, None if number % 13 == 5 else result, number % 11 == 4, stopped=stopped
            )
        return config

    straight, live, saved, seen = make(), [], [], []
    for number in range(70):
        saved.append((straight.save_state(), list(live)))
        seen.append(step(straight, live, number))
    for number in range(60):
        again, left = make(), list(saved[number][1])
        again.restore_state(saved[number][0])
        assert again.save_state() == saved[number][0]
        assert [step(again, left, later) for later in range(number, 70)] == seen[number:], number


def test_the_state_is_small():
    space = {f"x{place}": uniform(0, 1) for place in range(10)}
    made = searcher(space)
    empty = len(made.save_state())
    for number in range(500):
        made.add_evaluated_point({f"x{place}": (number * place % 97) / 97 for place in range(10)}, number)
    assert empty <= 2000
    assert len(made.save_state()) - empty <= 500 * 8 * 16


def test_a_restore_with_another_space_names_what_changed():
    state = searcher({"x": uniform(0, 1), "n": randint(0, 5)}).save_state()
    for other, label in (({"x": uniform(0, 2), "n": randint(0, 5)}, "x"), ({"x": uniform(0, 1)}, "n")):
        with pytest.raises(RestoreError, match=f"'{label}'"):
            searcher(other).restore_state(state)


def test_a_state_waits_for_the_space():
    made = searcher(FULL)
    play(made, 12, lambda config: config["x"])
    again = TPESearch()
    again.restore_state(made.save_state())
    assert again.save_state() == made.save_state()
    again.set_search_properties("loss", "min", FULL)
    assert again.suggest("next") == made.suggest("next")


def test_a_finite_space_is_not_repeated_before_it_is_exhausted():
    space, _ = SPACES["finite"]
    found = play(searcher(space), 120, lambda config: config["depth"])
    assert len({str(config) for config in found}) == 120
    assert is_inside(play(made := searcher(space), 125, lambda config: 1.0)[-1], space)
    assert made.suggest("one more") is not None


def test_a_finite_conditional_space_is_not_repeated():
    space = {"a": choice([{"k": randint(0, 6)}, {"m": choice([1, 2, {"z": quniform(0, 1, 0.5)}])}, "none"])}
    found = play(searcher(space), 12, lambda config: 0.5)
    assert len({str(config) for config in found}) == 12


def test_conditional_spaces_learn_the_branch_and_its_numbers():
    space, _ = SPACES["conditional"]

    def value(config):
        model = config["model"]
        if model == "none" or model["kind"] == "tree":
            return 2.0
        head = model["head"]
        return 1.0 if head == "none" else abs(head["rate"] - 0.7)

    found = play(searcher(space, seed=0), 80, value)
    assert min(map(value, found[40:])) < 0.05
    assert sum(value(config) < 1 for config in found[40:]) > 20


@pytest.mark.parametrize(
    "space",
    [
        {"x": loguniform(1e-300, 1e300)},
        {"x": uniform(-1e308, 1e308)},
        {"x": Float(0.0, 1.0).normal(0.5, 0.1)},
        {"x": Float(50.0, 60.0).normal(0.0, 1.0)},
        {"x": qrandn(0, 1e-3, 0.5)},
        {"x": randn(1e6, 1e-6)},
        {"x": uniform(3, 3), "y": choice(["only"])},
        {"x": randint(-(2**52), 2**52)},
    ],
    ids=str,
)
def test_extreme_domains_give_values_inside(space):
    found = play(searcher(space), 25, lambda config: math.tanh(config["x"]))
    for config in found:
        assert set(config) == set(space)
        domain = space["x"]
        assert domain.lower <= config["x"] <= domain.upper
        assert math.isfinite(config["x"])


def test_whole_numbers_that_floats_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="'x'"):
        searcher({"x": randint(0, 2**60)})


@pytest.mark.parametrize("value", [1e308, -1e308, 0.0, -0.0])
def test_equal_and_huge_values_are_only_sorted(value):
    found = play(searcher(FULL), 20, lambda config: value)
    assert all(is_inside(config, FULL) for config in found)


def test_options_may_be_arrays():
    import numpy as np

    options = [np.zeros(3), np.ones(3), np.full(3, 2.0)]
    made = searcher(
        {"a": choice(options), "x": uniform(0, 1)}, points_to_evaluate=[{"a": options[1], "x": 0.5}]
    )
    assert made.suggest("first")["a"] is options[1]
    found = play(made, 30, lambda config: float(config["a"].sum()))
    assert sum(config["a"] is options[0] for config in found[15:]) > 7


def test_points_are_suggested_exactly_and_filled_where_they_lack_keys():
    points = [{"x": 0.1, "n": {"lr": 0.012345678901234567, "k": 3}, "kind": (1, 2)}, {"n/k": 5}]
    made = searcher(FULL, points_to_evaluate=points)
    state = made.save_state()
    assert made.suggest("a") == points[0]
    second = made.suggest("b")
    assert is_inside(second, FULL)
    assert second["n"]["k"] == 5
    again = searcher(FULL)
    again.restore_state(made.save_state())
    assert again.suggest("a") == points[0]
    again.restore_state(state)
    assert again.suggest("a") == points[0]


def test_evaluated_rewards_are_results():
    points = [{"x": x / 10, "n": {"lr": 0.01, "k": 1}, "kind": "a"} for x in range(-9, 10)]
    made = searcher(FULL, points_to_evaluate=points, evaluated_rewards=[abs(p["x"] - 0.5) for p in points])
    assert len(good(made)) == 3
    found = play(made, 20, lambda config: abs(config["x"] - 0.5))
    assert sum(abs(config["x"] - 0.5) < 0.3 for config in found) > 10
    with pytest.raises(ValueError, match="evaluated_rewards"):
        searcher(FULL, points_to_evaluate=points, evaluated_rewards=[1.0])


# The order of trials.


def good(made):
    """Trials in the order of the model, by their number."""
    return [int(place) for place in made._table.good()]


def ended(made, *endings):
    """Suggest and end trials: a value, or keyword arguments of on_trial_complete."""
    for number, ending in enumerate(endings):
        made.suggest(f"t{number}")
        how = {"result": {"loss": ending}} if isinstance(ending, float) else ending
        made.on_trial_complete(f"t{number}", **how)


def everything_is_good(monkeypatch):
    import muster.tune.search.tpe.table as table

    monkeypatch.setattr(table, "SHARE_GOOD", 1.0)


def test_complete_then_stopped_by_rung_then_infeasible_and_failures_last(monkeypatch):
    everything_is_good(monkeypatch)
    made = searcher(FULL, constraints={"ms": 50})
    made.set_rungs((1, 3, 9), "step")

    def at(step, value, ms=10.0, **more):
        return {"result": {"loss": value, "step": step, "ms": ms}, **more}

    ended(
        made,
        at(2, 0.1, stopped=True),  # rung 1
        at(4, 0.9, stopped=True),  # rung 3
        at(1, 5.0),  # complete
        at(9, 4.0, stopped=True),  # at the last rung: complete
        at(9, 0.0, ms=80.0),
        at(9, 0.0, ms=60.0),
        at(3, 0.8, stopped=True),
        at(9, math.nan),
        {"error": True},
        {"result": None},
        {"result": {"loss": -1.0}},  # without the constraint's key
    )
    assert good(made) == [3, 2, 6, 1, 0, 5, 4, 10]


def test_a_running_trial_counts_at_its_rung_and_keeps_its_value_there(monkeypatch):
    everything_is_good(monkeypatch)
    made = searcher(FULL)
    made.set_rungs((2.0, 4.0), "step")
    for number, value in enumerate([3.0, 2.0, 1.0]):
        made.suggest(f"t{number}")
        made.on_trial_result(f"t{number}", {"loss": value, "step": 2})
        made.on_trial_result(f"t{number}", {"loss": -value, "step": 3})  # between rungs
    assert good(made) == [2, 1, 0]
    made.on_trial_result("t0", {"loss": 9.0, "step": 4})
    assert good(made) == [0, 2, 1]
    made.on_trial_complete("t1")  # stopped while it was paused
    assert good(made) == [0, 2, 1]
    made.suggest("t3")
    made.on_trial_complete("t3")  # never ran
    assert good(made) == [0, 2, 1]


def test_without_rungs_only_ended_trials_count(monkeypatch):
    everything_is_good(monkeypatch)
    made = searcher(FULL)
    for number in range(3):
        made.suggest(f"t{number}")
        made.on_trial_result(f"t{number}", {"loss": -1.0 * number, "training_iteration": 5})
    assert good(made) == []
    made.on_trial_complete("t0", {"loss": 7.0})
    made.on_trial_complete("t2", {"loss": -8.0}, stopped=True)  # by a scheduler without rungs
    made.on_trial_complete("t1")
    assert good(made) == [0, 2, 1]


def test_ties_are_in_the_order_of_the_trials_and_the_share_is_fifteen_percent():
    made = searcher(FULL)
    ended(made, *([1.0] * 30), 2.0, 0.5)
    assert good(made) == [31, 0, 1, 2, 3]
    for number in range(400):
        made.add_evaluated_point(point(FULL, 0), 3.0 + number)
    assert len(good(made)) == 25


def test_several_objectives_are_ordered_by_front_and_volume():
    made = searcher(FULL, metric=["a", "b", "c"], mode=["min", "max", "obs"])
    made.set_search_properties(None, None, FULL)
    values = [(0.0, 0.0), (1.0, 1.0), (0.5, 0.9), (0.52, 0.9), (0.2, 0.4), (0.9, 0.91), *([(2.0, -1.0)] * 20)]
    for number, (a, b) in enumerate(values):
        made.suggest(f"t{number}")
        made.on_trial_complete(f"t{number}", {"a": a, "b": b, "c": 0.0})
    assert good(made) == [2, 4, 0, 1]  # the middle adds most; dominated ones are left out


def test_it_says_why():
    made = searcher(FULL, points_to_evaluate=[point(FULL, 0)])
    reasons = []
    for number in range(9):
        config = made.suggest(f"t{number}")
        reasons.append(made.why(f"t{number}"))
        made.on_trial_complete(f"t{number}", {"loss": config["x"]})
        assert made.why("another") == ""
    assert len({*map(bool, reasons)}) == 1
    assert len({reasons[0], reasons[1], reasons[8]}) == 3
