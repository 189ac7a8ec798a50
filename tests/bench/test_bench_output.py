from __future__ import annotations

import json

from bench.floors import FLOORS, missed

from bench import table

GOOD = {
    floor.pattern.replace("*", "a"): floor.at_most if floor.at_least is None else floor.at_least
    for floor in FLOORS["planner"]
} | {"cost_ratio.b": 1.05}


def test_the_last_line_is_one_json_object_with_sorted_figures():
    line = table.last_line("planner", {"b": 2.0, "a": 1})
    assert line == '{"bench": "planner", "figures": {"a": 1, "b": 2.0}}'


def test_numbers_that_json_cannot_say_are_left_out():
    line = table.last_line("planner", {"a": float("inf"), "b": float("nan"), "c": 1.5})
    assert json.loads(line) == {"bench": "planner", "figures": {"c": 1.5}}


def test_figures_that_reach_every_floor_miss_none():
    assert missed("planner", GOOD, partial=False) == []


def test_each_missed_floor_is_named_with_its_bound():
    figures = GOOD | {"cost_ratio.b": 1.0501, "speedup.half_500n_5000p_20s": 299.0}
    assert missed("planner", figures, partial=False) == [
        "speedup.half_500n_5000p_20s is 299: at least 300",
        "cost_ratio.b is 1.05: at most 1.05",
    ]


def test_an_absent_figure_is_missed_in_a_full_run_and_forgiven_in_a_partial_one():
    figures = {"history_factor.100k": 1.0}
    assert missed("reconcile", figures, partial=False) == [
        "speedup.steady_10000 was not measured: at least 200"
    ]
    assert missed("reconcile", figures, partial=True) == []


def test_every_benchmark_has_floors():
    assert sorted(FLOORS) == [
        "aws",
        "command",
        "economy",
        "kuberay",
        "page",
        "planner",
        "reconcile",
        "scaleup",
        "schedulers",
        "search",
        "search-early-stopping",
        "slurm",
        "tune",
        "tune-ray",
        "up",
    ]
