"""A space is checked when it is given: the error names the parameter, and what is fine passes."""

from __future__ import annotations

import logging
import re
from functools import partial

import numpy as np
import pytest

from muster import tune
from muster.tune.search.check_space import check_space

WRONG = [
    ("param_space['a']: uniform(2, 1) has its lower", {"a": tune.uniform(2, 1)}),
    ("param_space['a']: loguniform(1, 0.1) has its lower", {"a": tune.loguniform(1, 0.1)}),
    ("param_space['a']: qrandint(8, 4, 4) has its lower", {"a": tune.qrandint(8, 4, 4)}),
    ("param_space['a']: randint(1, 1) is empty", {"a": tune.randint(1, 1)}),
    ("param_space['a']: lograndint(2, 2) is empty", {"a": tune.lograndint(2, 2)}),
    ("param_space['a']: qrandint(5, 7, 4): no multiple of 4", {"a": tune.qrandint(5, 7, 4)}),
    ("param_space['a']: choice([]) has nothing", {"a": tune.choice([])}),
    ("param_space['a']: grid_search([]) has no values", {"a": tune.grid_search([])}),
    ("param_space['a']: grid_search(3) needs a list", {"a": {"grid_search": 3}}),
    ("param_space: a grid of whole configs holds dicts", tune.grid_search([3])),
    ("param_space['a'][1]['b']: uniform(2, 1)", {"a": tune.choice([1, {"b": tune.uniform(2, 1)}])}),
    ("param_space['a'][0]: uniform(2, 1)", {"a": tune.grid_search([tune.uniform(2, 1)])}),
    ("param_space['a'][1]['b']: uniform(2, 1)", {"a": [0, {"b": tune.uniform(2, 1)}]}),
]
RIGHT = {
    "a constant": tune.uniform(1, 1),
    "whole floats": tune.randint(1e3, 1e4),
    "one multiple": tune.qrandint(4, 4, 2),
    "numbers of numpy": tune.uniform(np.float32(0), np.int64(3)),
    "no bounds": tune.randn(),
    "a generator": tune.grid_search(iter([1, 2])),
    "an array as grid": tune.grid_search(np.arange(3)),
    "a function": tune.sample_from(lambda config: 3),
    "plain": [1, "a", None, {"b": (1, 2)}],
}


@pytest.mark.parametrize(("beginning", "space"), WRONG)
def test_what_no_value_can_come_from_is_refused_by_the_tuner_tune_run_and_ask_tell(beginning, space):
    for take in (partial(tune.Tuner, lambda config: None), tune.ask_tell.AskTell):
        with pytest.raises(ValueError, match=re.escape(beginning)):
            take(param_space=space)
    with pytest.raises(ValueError, match=r"^config[:\[]"):
        tune.run(lambda config: None, config=space)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_fine_passes_in_silence(name, caplog):
    check_space({"a": {"b": RIGHT[name]}})
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (np.zeros(1_000_000), "a ndarray of 8 MB"),
        ("x" * 2_000_000, "a str of 2 MB"),
        ([0.5] * 500_000, "a list of 4 MB"),
    ],
)
def test_a_large_value_is_named_once_with_the_way_around(value, size, caplog):
    with caplog.at_level(logging.WARNING):
        check_space({"data": value, "more": {"data": value}})
    (record,) = caplog.records
    assert all(
        word in record.getMessage() for word in ("param_space['data']", size, " 1 ", "tune.with_parameters")
    )


def test_a_large_table_of_pandas_is_noticed(caplog):
    pandas = pytest.importorskip("pandas")
    check_space({"data": pandas.DataFrame({"x": np.zeros(300_000)})})
    (record,) = caplog.records
    assert all(word in record.getMessage() for word in ("param_space['data']", "DataFrame", "2 MB"))
