from __future__ import annotations

import re

import pytest

pytest.importorskip("ax.api.client", reason="AxSearch needs ax-platform with torch, which is not in `dev`")
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from tests.tune.search.library_rules import LibraryRules

from muster.tune.search.ax import AxSearch
from muster.tune.search.space import choice, qrandint, randint, uniform

pytestmark = pytest.mark.filterwarnings("ignore")  # Ax's parts warn about each other


class TestRules(LibraryRules):
    """With Sobol points only: a model over a mixed space takes a minute per suggestion on a small machine."""

    steps = 20
    examples = 8
    refusal = "Ax refuses the space"

    def make(self, **options):
        return AxSearch(random_seed=1, **{"initialization_budget": 200, **options})

    def test_it_learns_in_both_modes(self):
        for sign, mode in ((1, "min"), (-1, "max")):
            made = searcher(mode=mode, initialization_budget=3)
            found = told(made, sign, 8)
            assert sum(one["x"] + one["y"] for one in found[-4:]) < sum(
                one["x"] + one["y"] for one in found[:4]
            )


def told(made, sign, count, prefix="t"):
    found = []
    for number in range(count):
        found.append(made.suggest(f"{prefix}{number}"))
        made.on_trial_complete(f"{prefix}{number}", {"loss": sign * (found[-1]["x"] ** 2 + found[-1]["y"])})
    return found


def test_a_model_is_resumed_with_the_same_suggestions():
    made = searcher(initialization_budget=3)
    told(made, 1, 5)
    made.suggest("running")
    again = AxSearch()
    again.restore_state(made.save_state())
    for one in (made, again):
        one.on_trial_complete("running", {"loss": 0.5})
    assert told(again, 1, 3, "n") == told(made, 1, 3, "n")


def searcher(space=None, mode="min", **options):
    made = AxSearch(random_seed=1, **options)
    made.set_search_properties("loss", mode, space or {"x": uniform(0, 1), "y": uniform(0, 1)})
    return made


def test_none_when_as_many_are_unfinished_as_ax_allows():
    made = searcher(initialization_budget=4)
    answers = [made.suggest(str(number)) for number in range(9)]
    assert isinstance(answers[0], dict)
    assert answers[-1] is None
    made.on_trial_complete("0", {"loss": 1.0})
    made.on_trial_complete("1", {"loss": float("nan")})
    for number in range(2, 9):
        made.on_trial_complete(str(number), {"loss": float(number)})
    assert isinstance(made.suggest("next"), dict)


def test_constraints_of_parameters_and_outcomes():
    made = searcher(parameter_constraints=["x + y <= 1"], outcome_constraints=["latency <= 5"])
    for number in range(4):
        found = made.suggest(str(number))
        assert found["x"] + found["y"] <= 1 + 1e-6
        made.on_trial_complete(str(number), {"loss": found["x"], "latency": 10 * found["y"]})
    frame = made._client.summarize()
    assert {"objective", "latency"} <= set(frame.columns)
    made.suggest("incomplete")
    made.on_trial_complete("incomplete", {"loss": 1.0})
    assert made._client.summarize()["trial_status"].iloc[-1] == "ABANDONED"


def test_a_step_is_dropped_with_a_warning(caplog):
    searcher({"q": qrandint(4, 12, 4)})
    assert re.search(r"'q' .*\b4 ", caplog.text)


def test_parameters_of_axs_own():
    space = [
        {"name": "x", "type": "range", "bounds": [0.0, 1.0]},
        {"name": "n/k", "type": "range", "bounds": [1, 5], "log_scale": True},
        {"name": "c", "type": "choice", "values": ["a", "b", "c"]},
        {"name": "f", "type": "fixed", "value": 3},
        RangeParameterConfig(name="z", bounds=(2, 3), parameter_type="float"),
    ]
    made = AxSearch(space, "loss", "max", random_seed=1)
    found = made.suggest("a")
    assert (set(found), found["f"], type(found["n"]["k"])) == ({"x", "n", "c", "f", "z"}, 3, int)
    with pytest.raises(ValueError, match=r"range.*choice.*fixed"):
        AxSearch([{"name": "x", "type": "rang"}], "loss", "min")


def test_a_client_that_is_configured_already():
    client = Client(random_seed=1)
    client.configure_experiment([RangeParameterConfig(name="x", bounds=(0, 1), parameter_type="float")])
    client.configure_optimization(objective="score")
    made = AxSearch(ax_client=client, metric="accuracy", mode="max")
    found = made.suggest("a")
    made.on_trial_complete("a", {"accuracy": 0.5})
    made.add_evaluated_point({"x": 0.25}, 0.75)
    assert list(client.summarize()["score"]) == [0.5, 0.75]
    assert 0 <= found["x"] <= 1


def test_a_finite_space_that_is_used_up_ends_the_search():
    made = searcher({"c": choice([1, 2]), "k": randint(0, 2)})
    answers = [made.suggest(str(number)) for number in range(5)]
    assert len({str(one) for one in answers[:4]}) == 4
    assert answers[4] == "FINISHED"


def test_bad_parameters():
    with pytest.raises(ValueError, match=r"random_sede.*random_seed"):
        AxSearch(random_sede=1)
    with pytest.raises(ValueError, match=r"ax\.api\.client\.Client"):
        AxSearch(ax_client=object())
