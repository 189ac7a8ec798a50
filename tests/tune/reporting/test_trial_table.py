from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.tune.reporting.examples import trial

from muster.tune.reporting.tables import (
    TrialTable,
    best_first,
    chosen,
    columns_for,
    fair_choice,
    table_of,
)


@pytest.mark.conformance("C-205")
def test_up_to_twenty_trials_all_have_a_row():
    trials = [trial(n, "PENDING") for n in range(20)]
    assert chosen(trials, Counter(each.status for each in trials), 20) == (trials, "")


@pytest.mark.conformance("C-205")
def test_thirty_trials_in_three_states_have_five_rows_each():
    states = ["RUNNING", "TERMINATED", "PENDING"]
    trials = [trial(n, states[n % 3]) for n in range(30)]
    rows, more = chosen(trials, Counter(each.status for each in trials), 5)
    assert [row.status for row in rows] == ["RUNNING"] * 5 + ["TERMINATED"] * 5 + ["PENDING"] * 5
    assert re.findall(r"(\d+) more (\w+)", more) == [("5", "RUNNING"), ("5", "TERMINATED"), ("5", "PENDING")]


def test_the_table_has_parameters_usual_metrics_and_a_few_others():
    trials = [
        trial(0, "RUNNING", loss=0.5, acc=0.1, a=1, b=2, c=3, text="no number"),
        trial(1, "PENDING"),
    ]
    table = table_of(trials, columns_for(trials, ("x", "k"), "loss"))
    assert table == TrialTable(
        ("Trial name", "status", "x", "k", "iter", "total time (s)", "loss", "acc", "a", "b"),
        (
            ("obj_a1a89_00000", "RUNNING", "0", "0", "3", "1.5", "0.5", "0.1", "1", "2"),
            ("obj_a1a89_00001", "PENDING", "0.25", "1", "", "", "", "", "", ""),
        ),
    )


def test_a_nested_metric_has_its_flat_name():
    each = trial(0, loss=1.0)
    each.last_result = {"val": {"loss": 0.25}}
    table = table_of([each], columns_for([each], (), "val/loss"))
    assert (table.headers, table.rows) == (
        ("Trial name", "status", "val/loss"),
        (("obj_a1a89_00000", "TERMINATED", "0.25"),),
    )


def test_rows_are_shared_fairly_between_states():
    trials = [trial(n, "TERMINATED") for n in range(10)] + [trial(n, "ERROR") for n in range(10, 12)]
    rows, left = fair_choice(trials, 6)
    assert [row.status for row in rows] == ["TERMINATED"] * 4 + ["ERROR"] * 2
    assert left == {"TERMINATED": 6}


def test_the_best_come_first_and_nan_last():
    trials = [trial(0, loss=float("nan")), trial(1, loss=2.0), trial(2), trial(3, loss=1.0)]
    assert best_first(trials, "loss", "min") == [trials[3], trials[1], trials[0], trials[2]]
    assert best_first(trials, "loss", "max") == [trials[1], trials[3], trials[0], trials[2]]
    assert best_first(trials, None, None) == trials
