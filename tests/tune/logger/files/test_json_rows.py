"""JSON as Ray writes it, whichever encoder is used."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.tune.logger.files.json_rows import RowEncoder, encode, jsonable, pretty


def reference(value):
    return json.loads(json.dumps(value, default=jsonable))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(plain, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8)
rows = st.lists(
    st.dictionaries(
        st.sampled_from(["loss", "checkpoint_dir_name", "config", "a", "null"]), values | st.just("null")
    ),
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(rows)
def test_lines_say_what_the_standard_library_says_and_leave_the_rows_alone(some):
    before = repr(some)
    lines = RowEncoder().lines(some).decode().splitlines()
    assert repr([json.loads(line) for line in lines]) == repr([reference(row) for row in some])
    assert repr(some) == before


def test_not_a_number_and_infinities_are_written_as_ray_writes_them():
    line = RowEncoder().lines([{"a": math.nan, "b": math.inf, "c": -math.inf, "d": None, "e": 1.5}])
    assert line == b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": null, "e": 1.5}\n'


def test_a_hidden_nan_in_the_config_or_in_a_list_is_found():
    config = {"h": {"u": math.nan}, "n": None}
    row = {"checkpoint_dir_name": None, "l": [1.0, math.nan], "config": config}
    read = json.loads(RowEncoder().lines([row]))
    assert math.isnan(read["l"][1])
    assert math.isnan(read["config"]["h"]["u"])
    assert read["config"]["n"] is None


def test_the_config_of_each_row_is_its_own():
    first, second = {"x": 1}, {"x": 2}
    lines = RowEncoder().lines([{"config": first}, {"config": second}, {"config": first}])
    assert lines == b'{"config":{"x":1}}\n{"config":{"x":2}}\n{"config":{"x":1}}\n'


def test_numpy_becomes_numbers_and_lists_and_the_rest_text():
    row = {
        "f": np.float32(0.5),
        "i": np.int64(3),
        "a": np.arange(3.0),
        "b": b"x",
        "s": {1},
        "big": 2**70,
        "t": (1, 2),
        "n": np.float64(2.5),
        "fn": len,
    }
    assert json.loads(encode(row)) == {
        "f": 0.5,
        "i": 3,
        "a": [0.0, 1.0, 2.0],
        "b": "b'x'",
        "s": "{1}",
        "big": 2**70,
        "t": [1, 2],
        "n": 2.5,
        "fn": "<built-in function len>",
    }


def test_keys_that_json_does_not_know_become_text():
    assert json.loads(encode({(1, 2): {3: 4}})) == {"(1, 2)": {"3": 4}}


def test_a_structure_that_contains_itself_is_cut():
    loop: dict = {}
    loop["self"] = loop
    assert b'"..."' in encode(loop)


def test_pretty_is_what_ray_writes_as_params():
    config = {"x": 1, "n": None, "h": {"u": math.nan}, "fn": len}
    seen_from_ray = (
        '{\n  "fn": "<built-in function len>",\n  "h": {\n    "u": NaN\n  },\n  "n": null,\n  "x": 1\n}'
    )
    assert pretty(config) == seen_from_ray


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("ab/é", max_size=3), st.recursive(plain, lambda v: st.lists(v, max_size=3))))
def test_pretty_is_indented_like_the_standard_library(config):
    expected = json.dumps(config, indent=2, sort_keys=True, default=jsonable)
    assert repr(json.loads(pretty(config))) == repr(json.loads(expected))
    assert pretty(config).count("\n") == expected.count("\n")


def test_mixed_keys_can_be_sorted():
    assert pretty({1: "a", "b": 2}) == '{\n  "1": "a",\n  "b": 2\n}'
