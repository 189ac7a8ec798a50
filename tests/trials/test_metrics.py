"""Statistics of metrics: the same numbers however results are folded in, whatever users report."""

from __future__ import annotations

import math
from collections import deque
from random import Random

import msgspec
import numpy as np
import pytest

from muster.trials.metrics import Statistics, flatten, flatten_result, missing_metric


def one_by_one(rows):
    """The definition: each value in turn, with nothing put off."""
    found, windows = {}, {}
    for row in rows:
        step = row.get("training_iteration") or 1
        for name, reported in row.items():
            if not isinstance(reported, (int, float)):
                continue
            value = float(reported)
            if name not in found:
                found[name] = {"max": value, "min": value, "avg": value}
                windows[name] = {5: deque(maxlen=5), 10: deque(maxlen=10)}
            else:
                known = found[name]
                known["max"] = value if math.isnan(known["max"]) else max(known["max"], value)
                known["min"] = value if math.isnan(known["min"]) else min(known["min"], value)
                known["avg"] = ((step - 1) * known["avg"] + value) / step
            found[name]["last"] = value
            for size, window in windows[name].items():
                window.append(value)
                found[name][f"last-{size}-avg"] = sum(window) / len(window)
    return found


def noted(rows, look_every=None):
    statistics = Statistics()
    for position, row in enumerate(rows, start=1):
        statistics.note(row)
        if look_every and position % look_every == 0:
            statistics.analysis()
    return statistics


def drawn_rows(seed, count=150):
    """Numbers of all kinds, NaN and infinities among them, keys that come and go."""
    rng = Random(seed)
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, True, 7, None, "text"]
    rows = []
    for step in range(1, count + 1):
        row = {"a": rng.gauss(0, 1), "b": rng.randint(-5, 5), "training_iteration": step}
        if rng.random() < 0.3:
            row["c"] = rng.choice(special)
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("look_every", [None, 1, 7])
def test_numbers_are_those_of_adding_one_by_one_whenever_somebody_looks(seed, look_every):
    rows = drawn_rows(seed)
    # As text, because NaN is not equal to itself and -0.0 is equal to 0.0.
    assert repr(noted(rows, look_every).analysis()) == repr(one_by_one(rows))


@pytest.mark.parametrize("cut", [0, 1, 2, 11, 63, 64, 65, 149])
def test_saved_in_the_middle_and_restored_the_end_is_the_same(cut):
    rows = drawn_rows(9)
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(noted(rows[:cut]).saved()))
    restored = Statistics(saved)
    for row in rows[cut:]:
        restored.note(row)
    whole = noted(rows)
    assert repr(restored.analysis()) == repr(whole.analysis())
    assert repr(restored.saved()) == repr(whole.saved())


def test_what_was_saved_does_not_change_when_more_comes():
    statistics = noted([{"a": 1.0}, {"a": 2.0}])
    saved = statistics.saved()
    statistics.note({"a": 3.0, "training_iteration": 3})
    statistics.analysis()
    assert saved == {"a": [2.0, 1.0, 2.0, [1.0, 2.0]]}


def test_a_metric_seen_once_is_kept_as_its_value():
    statistics = noted([{"a": 1, "when": "now", "pid": 4, "config": {}}])
    assert statistics.saved() == {"a": 1.0}
    assert statistics.analysis() == {
        "a": {"max": 1.0, "min": 1.0, "avg": 1.0, "last": 1.0, "last-5-avg": 1.0, "last-10-avg": 1.0}
    }


def test_parameters_are_no_metrics():
    rows = [flatten({"a": 1.0, "config": {"lr": 0.1, "net": {"width": 4}}})] * 3
    assert list(noted(rows[:1]).analysis()) == list(noted(rows).analysis()) == ["a"]


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, 0.1, True, 2**52 + 1, math.inf])
def test_a_value_that_does_not_change_has_the_average_of_adding_one_by_one(value):
    rows = [{"a": value, "training_iteration": step} for step in range(1, 130)]
    rows += [{"a": -value, "training_iteration": 130}, {"a": value, "training_iteration": 131}]
    assert repr(noted(rows).analysis()) == repr(one_by_one(rows))
    assert repr(noted(rows, 1).analysis()) == repr(one_by_one(rows))


def test_windows_hold_the_last_five_and_ten():
    statistics = noted([{"a": float(i), "training_iteration": i} for i in range(1, 13)])
    assert statistics.windows()["a"] == {
        "5": deque([8.0, 9.0, 10.0, 11.0, 12.0]),
        "10": deque(float(i) for i in range(3, 13)),
    }


def test_arrays_and_objects_are_no_metrics_and_are_not_kept_alive():
    np = pytest.importorskip("numpy")
    statistics = noted([{"scalar": np.float32(0.5), "array": np.zeros(3), "none": None, "huge": 10**400}])
    assert statistics._waiting == [{"scalar": 0.5}]
    assert statistics.saved() == {"scalar": 0.5}


def test_a_number_too_large_for_a_float_is_left_out():
    assert noted([{"huge": 10**400, "a": 1.0}]).saved() == {"a": 1.0}


@pytest.mark.parametrize(
    "result",
    [
        {"loss": 1.0, "config": {"x": 1, "net": {"layers": 2, "none": {}}}, "done": False},
        {"loss": 1.0, "inner": {"a": {"b": 2}}, "config": {"x": 1}, "done": False},
        {"config": {}, "loss": 1.0},
        {"loss": 1.0},
        {"loss": object(), "config": {"x": [1, 2]}},
    ],
)
def test_a_result_with_known_leaves_is_flattened_like_any_other(result):
    first, first_light, known = flatten_result(result)
    again, light, _ = flatten_result(result, known)
    assert list(first.items()) == list(again.items()) == list(flatten(result).items())
    assert first_light == light == (type(result["loss"]) is float)
    other, _, _ = flatten_result({**result, "config": {"x": 7}}, known)
    assert other["config/x"] == 7


@pytest.mark.parametrize("value", [(1.0, 2.0), [1.0], None, {}, "bad", np.array([1.0, 2.0]), object()])
def test_a_first_value_that_is_not_a_number_is_refused(value):
    wanted = (("experiment", "loss"),)
    fault = missing_metric({"loss": value, "step": 1}, wanted, is_first=True)
    assert "'loss'" in fault
    assert missing_metric({"loss": value, "step": 2}, wanted) == ""


@pytest.mark.parametrize("value", [1, 0.5, True, float("nan"), np.float32(0.5), np.array(0.5)])
def test_numbers_of_any_kind_are_accepted(value):
    assert missing_metric({"loss": value}, (("experiment", "loss"),), is_first=True) == ""
