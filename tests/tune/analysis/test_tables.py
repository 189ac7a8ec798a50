from __future__ import annotations

import math
import random

import pytest

from muster.trials.model import Trial
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.pareto import pareto_front
from muster.tune.result_grid import ResultGrid


def test_the_front_of_two_goals_keeps_equal_rows_and_leaves_out_what_is_no_number():
    rows = [(1, 5), (2, 5), (2, 9), (0, 0), (2, 5), (math.nan, 0), (None, 1), ("a", 1), (math.inf, 0)]
    assert pareto_front(rows, ["max", "min"]) == [1, 3, 4]
    assert pareto_front([], ["min"]) == []


def test_the_front_is_what_the_definition_says():
    stream = random.Random(1)
    modes = ["min", "max", "min"]
    for _ in range(50):
        rows = [tuple(stream.randint(0, 4) for _ in modes) for _ in range(30)]

        def is_beaten(one, by):
            gains = [(a - b) if mode == "min" else (b - a) for a, b, mode in zip(one, by, modes, strict=True)]
            return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)

        expected = [place for place, one in enumerate(rows) if not any(is_beaten(one, by) for by in rows)]
        assert pareto_front(rows, modes) == expected


def test_results_of_a_grid(tmp_path):
    trials = []
    for number, (accuracy, cost) in enumerate([(0.9, 5), (0.8, 1), (0.7, 2), (0.95, None)]):
        trial = Trial(trial_id=f"t{number}", trainable_name="t", config={"n": number})
        trial.last_result = {"accuracy": accuracy, "val": {"cost": cost}}
        trials.append(trial)
    grid = ResultGrid(ExperimentAnalysis(str(tmp_path), trials=trials))
    front = grid.get_pareto_front(["accuracy", "val/cost"], ["max", "min"])
    assert [result.config["n"] for result in front] == [0, 1]
    with pytest.raises(ValueError, match=r"get_pareto_front.*'accuracy'.*'max'"):
        grid.get_pareto_front("accuracy", "max")
    with pytest.raises(ValueError, match="get_pareto_front"):
        grid.get_pareto_front(["accuracy"], ["best"])
