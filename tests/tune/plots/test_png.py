"""PNG files: they are drawn, hold what was asked for, and leave the user's matplotlib alone."""

from __future__ import annotations

import re

import pytest
from tests.mistakes.views import assert_view
from tests.tune.plots.examples import experiment, silent

from muster.tune.plots import KINDS
from muster.tune.plots.data import collect
from muster.tune.plots.png import draw, save_png

pytestmark = pytest.mark.slow

matplotlib = pytest.importorskip("matplotlib")


def scene_of(trials):
    return collect(trials, name="exp", metric="loss", mode="min")


def texts(figure) -> list[str]:
    from matplotlib.text import Text

    return [found.get_text() for found in figure.findobj(Text) if found.get_text() and found.get_visible()]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_png_of_its_panels(tmp_path, kind):
    plot = scene_of(experiment(tmp_path / "exp", 30, 9))
    target = tmp_path / "picture.png"
    save_png(plot, kind, str(target))
    assert target.read_bytes().startswith(b"\x89PNG\r\n")
    titles = [axes.get_title(loc="left") for axes in draw(plot, kind).axes]
    panels = {
        "curves": "Learning curves",
        "importance": "Parameter importance",
        "parallel": "Parameters of the trials",
    }
    assert titles == (list(panels.values()) if kind == "all" else [panels[kind]])


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_few_trials_are_drawn_and_empty_panels_say_why(tmp_path, count):
    figure = draw(scene_of(experiment(tmp_path / "exp", count, 3)), "all")
    shown = texts(figure)
    assert any(re.fullmatch(rf".* 8 .* {count}", text) for text in shown) == (count < 8)
    if count == 0:
        assert_view("plots/no_trials", "\n".join(shown))
    figure.canvas.draw()


def test_trials_without_results_are_counted_in_the_subtitle(tmp_path):
    trials = [*experiment(tmp_path / "exp", 8, 3), silent("t1", tmp_path)]
    shown = texts(draw(scene_of(trials), "all"))
    assert re.search(r"9 trials  ·  1 \w+  ·  1 \w+ loss", " ".join(shown))


def test_names_of_any_length_and_with_dollar_signs_fit_into_the_picture(tmp_path):
    trials = experiment(tmp_path / "exp", 20, 5, names=6)
    for trial in trials:
        trial.config["$x^{"] = trial.config["lr"]
    figure = draw(scene_of(trials), "all")
    with matplotlib.rc_context({"text.parse_math": False}):
        figure.canvas.draw()
    box = figure.bbox
    for axes in figure.axes:
        area = axes.get_tightbbox()
        assert box.x0 <= area.x0 + 1
        assert area.x1 - 1 <= box.x1
        assert box.y0 <= area.y0 + 1
        assert area.y1 - 1 <= box.y1


def test_settings_and_state_of_pyplot_stay_as_they_were(tmp_path):
    import sys

    matplotlib.rcParams["font.size"] = 31.0
    try:
        before, had_pyplot = dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules
        save_png(scene_of(experiment(tmp_path / "exp", 10, 3)), "all", str(tmp_path / "a.png"))
        assert dict(matplotlib.rcParams) == before
        assert ("matplotlib.pyplot" in sys.modules) == had_pyplot
    finally:
        matplotlib.rcParams["font.size"] = matplotlib.rcParamsDefault["font.size"]
