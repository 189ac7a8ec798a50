from __future__ import annotations

import numpy as np
import pytest

from muster.tune.logger.files.csv_rows import step_of
from muster.tune.logger.files.json_rows import is_number, plain
from muster.tune.logger.tracker import require


class Text(str):
    pass


@pytest.mark.parametrize("value", [1, 2.5, True, float("nan"), np.float32(1), np.int64(2), np.bool_(True)])
def test_numbers_of_python_and_numpy_are_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize("value", ["1", None, [1], np.array([1.0]), np.str_("1"), 1j, object()])
def test_anything_else_is_not(value):
    assert not is_number(value)


def test_values_become_plain():
    value = {"a": (np.float64(1.5), None), 2: {"b": np.int32(3)}, "c": Text("t"), "d": complex(1, 2)}
    assert plain(value) == {"a": [1.5, None], "2": {"b": 3}, "c": "t", "d": "(1+2j)"}
    assert type(plain(np.float64(1.5))) is float


@pytest.mark.parametrize(
    ("result", "step"),
    [
        ({"timesteps_total": 500, "training_iteration": 3}, 500),
        ({"timesteps_total": None, "training_iteration": 3}, 3),
        ({}, 0),
    ],
)
def test_steps_are_counted_ones_else_iterations(result, step):
    assert step_of(result) == step


def test_a_missing_package_is_told_with_what_to_do():
    require("json")
    with pytest.raises(ModuleNotFoundError, match="no_such_tracker"):
        require("no_such_tracker")
