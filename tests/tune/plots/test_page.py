"""The HTML file: self-contained, safe with any text, and it draws in a real browser where there is one."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.tune.plots.examples import experiment, silent

from muster.tune.analysis import ExperimentAnalysis
from muster.tune.plots import KINDS, save_plot

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)


def page_of(tmp_path, trials, kind="all", name="exp"):
    place = tmp_path / name
    place.mkdir(parents=True, exist_ok=True)
    analysis = ExperimentAnalysis(place, trials=trials, default_metric="loss", default_mode="min")
    return Path(save_plot(analysis, tmp_path / "plot.html", kind=kind)).read_text(encoding="utf-8")


def data_of(page) -> dict:
    return json.loads(re.search(r'id="muster-data">(.*?)</script>', page, re.S)[1])


def test_it_needs_nothing_from_elsewhere(tmp_path):
    page = page_of(tmp_path, experiment(tmp_path, 12, 3))
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:" in page
    assert not re.search(r"<(?:script|link|img)[^>]*\b(?:src|href)=|@import", page)


def test_its_data_are_those_of_the_trials(tmp_path):
    trials = experiment(tmp_path, 12, 3)
    data = data_of(page_of(tmp_path, trials))
    table = base64.b64decode(data["tables"]["0"])
    head = json.loads(table[4 : 4 + int.from_bytes(table[:4], "little")])
    names = {column["name"] for column in head["columns"]}
    assert (head["rows"], head["summary"]["metric"], head["summary"]["mode"]) == (12, "loss", "min")
    assert {"net/width", "opt", "momentum", "lr", "loss", "val/acc"} <= names
    details = dict(data["trials"]["0"]["t0000"]["config"])
    assert details["net/width"] == str(trials[0].config["net"]["width"])
    assert data["raw"]["0"]["0/loss"][0] == [
        float(step + 1) for step in range(len(data["raw"]["0"]["0/loss"][0]))
    ]


def test_trials_that_were_stopped_early_are_told_from_those_that_ended(tmp_path):
    trials = experiment(tmp_path, 3, 3)
    for trial, reason in zip(
        trials, ("at rung 3: loss = 2 is worse", "it reached max_t = 27", ""), strict=True
    ):
        trial.status, trial.decision, trial.reason = "TERMINATED", "stopped" if reason else "", reason
    table = base64.b64decode(data_of(page_of(tmp_path, trials))["tables"]["0"])
    head = json.loads(table[4 : 4 + int.from_bytes(table[:4], "little")])
    assert head["summary"]["counts"] == {"STOPPED": 1, "TERMINATED": 2}


def test_texts_cannot_break_out_of_the_page(tmp_path):
    nasty = "</script><script>alert(1)<!--"
    trials = [*experiment(tmp_path, 2, 2), silent(nasty, tmp_path, config={nasty: nasty})]
    page = page_of(tmp_path, trials, name="<b>exp")
    assert nasty not in page
    assert page.count("</script>") == 3
    assert nasty in data_of(page)["trials"]["0"]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
@pytest.mark.parametrize("kind", KINDS)
def test_a_browser_draws_every_panel_without_an_error(tmp_path, kind):
    page = page_of(tmp_path, experiment(tmp_path / "trials", 20, 6), kind)
    catch = "<script>addEventListener('error', (e) => document.body.append('BROKEN ' + e.message));</script>"
    file = tmp_path / "page.html"
    file.write_text(page.replace("<body>", f"<body>{catch}"), encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom")
    command = [BROWSER, *options, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "BROKEN" not in dumped.replace("'BROKEN '", "")
    dumped = dumped.partition('<div id="page">')[2].partition("<script")[0]
    parts = {"curves": "curves", "parallel": "parallel", "importance": "importance"}
    found = {name for name, test in parts.items() if f'data-test="{test}"' in dumped}
    assert found == (set(parts) if kind == "all" else {kind})
