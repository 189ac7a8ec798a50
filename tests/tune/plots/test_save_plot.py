"""ResultGrid.plot: where the file goes, which metric it shows, and its errors when something is missing."""

from __future__ import annotations

import builtins
import subprocess
import sys
import time

import pytest
from tests.tune.plots.examples import experiment

from muster.tune.analysis import ExperimentAnalysis
from muster.tune.result_grid import ResultGrid


def grid(root, count=10, steps=3, **defaults) -> ResultGrid:
    return ResultGrid(ExperimentAnalysis(root, trials=experiment(root, count, steps), **defaults))


@pytest.mark.slow
def test_by_default_it_is_results_png_beside_the_trials(tmp_path):
    pytest.importorskip("matplotlib")
    made = grid(tmp_path, default_metric="loss", default_mode="min").plot()
    assert made == str(tmp_path / "results.png")
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_html_is_written_for_another_metric(tmp_path):
    made = grid(tmp_path).plot(tmp_path / "a.html", metric="val/acc", mode="max", kind="curves")
    assert "val/acc" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert made == str(tmp_path / "a.html")


def test_it_says_which_metrics_there_are_when_none_is_named(tmp_path):
    results = grid(tmp_path)
    with pytest.raises(ValueError, match="val/acc"):
        results.plot()
    with pytest.raises(ValueError, match=r"\bloss\b.*mode='min'.*mode='max'"):
        results.plot(metric="loss")
    with pytest.raises(ValueError, match="mode='up' "):
        results.plot(metric="loss", mode="up")


def test_it_says_what_kinds_and_files_there_are(tmp_path):
    results = grid(tmp_path, default_metric="loss", default_mode="min")
    with pytest.raises(ValueError, match=r"kind='pie'.*\ball,.*\bcurves,.*\bparallel,.*\bimportance"):
        results.plot(kind="pie")
    with pytest.raises(ValueError, match=r"a\.gif'\).*\.png\b.*\.html\b"):
        results.plot(tmp_path / "a.gif")
    with pytest.raises(FileNotFoundError, match=r"none/a\.png'\): .*/none\b"):
        results.plot(tmp_path / "none" / "a.png")


def test_without_matplotlib_it_says_what_to_install_and_html_still_works(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    results = grid(tmp_path, default_metric="loss", default_mode="min")
    monkeypatch.setattr("muster.tune.plots.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"muster-ml\[plot\]"):
        results.plot(tmp_path / "a.png")
    assert results.plot() == str(tmp_path / "results.html")
    assert results.plot(tmp_path / "a.html").endswith("a.html")


@pytest.mark.slow
def test_a_thousand_trials_are_drawn_in_seconds_of_cpu(tmp_path):
    pytest.importorskip("matplotlib")
    results = grid(tmp_path, 1000, 12, default_metric="loss", default_mode="min")
    began = time.process_time()
    results.plot()
    results.plot(tmp_path / "a.html")
    assert time.process_time() - began < 12  # 1.5 s on a quiet machine, also with a hundred results each


def test_neither_the_package_nor_the_grid_imports_matplotlib_or_numpy():
    code = (
        "import sys, muster.tune.plots, muster.tune.result_grid; "
        "print(sorted({'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


@pytest.mark.parametrize(("name", "starts"), [("a.html", "<iframe srcdoc="), ("a.png", "<img ")])
def test_in_a_notebook_the_path_shows_the_plot(tmp_path, name, starts):
    drawn = grid(tmp_path, default_metric="loss", default_mode="min").plot(tmp_path / name)
    assert drawn == str(tmp_path / name)
    assert drawn._repr_html_().startswith(starts)
