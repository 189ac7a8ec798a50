"""Several experiments over each other: what the lines are made of, and the files."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from tests.tune.experiments import trial

from muster.tune.analysis import ExperimentAnalysis
from muster.tune.plots.overlay import ProgressCurve, progress_of, save_overlay


def curve(name, values):
    places = np.arange(len(values), dtype=float)
    return ProgressCurve(name, places, np.array(values, dtype=float), places + 1)


def test_a_line_ends_at_the_last_value_of_the_best_trial_that_violates_no_constraint(tmp_path):
    values = {"t1": [9.0, 1.0, 5.0], "t2": [4.0, float("nan"), 3.5], "t3": [7.0], "t4": [1.0, float("nan")]}
    trials = [trial(tmp_path, name, each) for name, each in values.items()]
    found = progress_of(ExperimentAnalysis(tmp_path, trials=trials), "mine", "loss", "min")
    assert (found.best[-1], found.results[-1], len(found.best)) == (3.5, 7, 3)
    assert (np.diff(found.best) <= 0).all()
    assert (np.diff(found.seconds) >= 0).all()
    bounded = ExperimentAnalysis(tmp_path, trials=trials, constraints={"loss": 6.0})
    highest = progress_of(bounded, "mine", "loss", "max").best[-1]
    assert highest == bounded.get_best_trial("loss", "max").last_result["loss"] == 5.0


def test_the_file_has_a_line_for_each_experiment_and_can_be_parsed(tmp_path):
    file = tmp_path / "both.svg"
    save_overlay(
        [curve("a<b", [3, 2, 1]), curve("c", [5, 5, 4]), curve("empty", [])], "loss", "results", file
    )
    text = file.read_text(encoding="utf-8")
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    lines = [each for each in svg.iter() if each.tag.endswith("path")]
    assert [line[0].text for line in lines] == ["a<b", "c"]
    legend = {each.text: each.get("fill") for each in svg.iter() if each.get("fill") and each.text}
    assert legend == {line[0].text: line.get("stroke") for line in lines}
    assert all("NaN" not in line.get("d") for line in lines)


def test_a_first_value_that_is_far_off_does_not_flatten_the_rest(tmp_path):
    file = tmp_path / "both.svg"
    save_overlay([curve("a", [1e9, *np.linspace(2, 1, 50)])], "loss", "results", file)
    assert "1e9" not in file.read_text(encoding="utf-8")


def test_nothing_and_equal_values_can_be_drawn(tmp_path):
    file = tmp_path / "both.svg"
    save_overlay([], "loss", "results", file)
    save_overlay([curve("a", [1.0, 1.0])], "loss", "time", file)
    assert file.read_text(encoding="utf-8").count("<path") == 1


def test_a_png_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "both.png"
    save_overlay([curve("a", [2.0, 1.0])], "loss", "results", file)
    assert file.read_bytes().startswith(b"\x89PNG")
