"""Tests what a plot shows, from result files."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from tests.tune.experiments import logged_row, trial, write_json
from tests.tune.plots.examples import experiment, silent

from muster.tune.plots.data import MOST_CURVES, MOST_LINES, MOST_POINTS, collect


def scene_of(trials, metric="loss", mode="min"):
    return collect(trials, name="exp", metric=metric, mode=mode)


def test_curves_values_and_the_best_trial_are_those_of_the_files(tmp_path):
    plot = scene_of([trial(tmp_path, "t1", [3.0, 2.0]), trial(tmp_path, "t2", [5.0, 1.0, 4.0])])
    first, second = plot.dots
    assert (first.value, second.value, plot.best, plot.longest) == (2.0, 4.0, 0, 3.0)
    assert (second.curve.iterations.tolist(), second.curve.values.tolist()) == ([1, 2, 3], [5, 1, 4])
    assert second.curve.seconds.tolist() == [0.5, 1.0, 1.5]
    assert (first.shade, second.shade) == (0.0, 1.0)
    assert [axis.name for axis in plot.parameters] == ["lr"]  # net/width is the same in both
    assert plot.has_progress


def test_high_values_are_best_where_that_is_wanted(tmp_path):
    plot = scene_of([trial(tmp_path, "t1", [3.0]), trial(tmp_path, "t2", [5.0])], mode="max")
    assert (plot.best, plot.dots[1].shade, plot.has_progress) == (1, 0.0, False)
    assert plot.lines == (0, 1)  # the best one last, on top


def test_trials_without_results_nan_and_infinity_do_not_disturb(tmp_path):
    trials = [
        trial(tmp_path, "t1", [3.0, math.nan]),
        trial(tmp_path, "t2", [2.0, math.inf]),
        trial(tmp_path, "t3", [1.0, 0.5]),
        silent("t4", tmp_path),
    ]
    plot = scene_of(trials)
    assert [dot.has_value for dot in plot.dots] == [True, True, True, False]
    assert [math.isnan(dot.value) for dot in plot.dots] == [True, True, False, True]
    assert (plot.best, plot.lines) == (2, (2,))
    assert np.isnan(plot.dots[1].curve.values).tolist() == [False, True]


def test_nested_metrics_are_found_by_their_flat_name(tmp_path):
    rows = [logged_row("t1", 1, {}, val={"acc": 0.5})]
    write_json(tmp_path / "t1", rows)
    one = trial(tmp_path, "t2", [1.0])
    one.last_result, one.path = rows[-1], str(tmp_path / "t1")
    assert scene_of([one], "val/acc", "max").dots[0].curve.values.tolist() == [0.5]


def test_many_trials_are_thinned_evenly_and_long_curves_too(tmp_path):
    plot = scene_of(experiment(tmp_path, 700, 1))
    worst, best = (plot.metric_axis.positions[n] for n in (plot.lines[0], plot.lines[-1]))
    assert (len(plot.curves), len(plot.lines)) == (MOST_CURVES, MOST_LINES)
    assert plot.dots[plot.best].curve is not None
    assert (plot.lines[-1], best) == (plot.best, 0.0)
    assert worst > 0.9
    long = scene_of([trial(tmp_path, "t9", [float(n) for n in range(1000)])]).dots[0].curve
    assert (long.values.size, long.iterations[0], long.iterations[-1]) == (MOST_POINTS, 1, 1000)


def test_a_metric_nobody_reported_is_an_error_that_names_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="los"):
        scene_of([trial(tmp_path, "t1", [1.0])], metric="los")


def test_nothing_reported_yet_is_no_error(tmp_path):
    plot = scene_of([silent("t1", tmp_path, config={"lr": 1}), silent("t2", tmp_path, config={"lr": 2})])
    assert (plot.best, plot.curves, plot.lines, plot.has_progress) == (None, [], (), False)
    assert scene_of([]).dots == ()


def test_a_damaged_log_costs_one_curve_and_a_warning(tmp_path, caplog):
    trials = [trial(tmp_path, "t1", [3.0, 2.0]), trial(tmp_path, "t2", [5.0, 1.0])]
    (tmp_path / "t1" / "result.json").write_text("{broken\n{}\n", encoding="utf-8")
    plot = scene_of(trials)
    assert [dot.curve is None for dot in plot.dots] == [True, False]
    assert [dot.value for dot in plot.dots] == [2.0, 1.0]
    (record,) = caplog.records
    assert re.search(r"\b1\b.*_t1: ", record.getMessage(), re.S)
