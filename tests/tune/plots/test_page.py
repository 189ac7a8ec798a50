"""The HTML file: self-contained, safe with any text, and it draws in a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from tests.tune.plots.examples import experiment, silent

from muster.tune.plots import KINDS
from muster.tune.plots.data import collect
from muster.tune.plots.page import html_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)


def page_of(trials, kind="all", name="exp"):
    return html_page(collect(trials, name=name, metric="loss", mode="min"), kind)


def data_of(page) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


def test_it_needs_nothing_from_elsewhere(tmp_path):
    page = page_of(experiment(tmp_path, 12, 3))
    addresses = set(re.findall(r"https?://[^\"' )]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address that is fetched
    assert not re.search(r"\b(src|href)=|@import|@@", page)


def test_its_data_are_those_of_the_trials(tmp_path):
    trials = experiment(tmp_path, 12, 3)
    data = data_of(page_of(trials))
    assert [each["id"] for each in data["trials"]] == [trial.trial_id for trial in trials]
    assert data["trials"][0]["parameters"]["net/width"] == str(trials[0].config["net"]["width"])
    assert data["trials"][7]["value"] is None  # NaN is no JSON
    assert [len(row) for row in data["rows"]] == [len(data["axes"])] * len(data["lines"])
    assert data["axes"][-1]["name"] == "loss"


def test_texts_cannot_break_out_of_the_page(tmp_path):
    nasty = "</script><script>alert(1)</script><!--"
    trials = [*experiment(tmp_path, 2, 2), silent(nasty, tmp_path, config={nasty: nasty})]
    page = page_of(trials, name=nasty)
    assert nasty not in page
    assert page.count("</script>") == 2
    assert data_of(page)["trials"][2]["id"] == nasty


@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
@pytest.mark.parametrize("kind", KINDS)
def test_a_browser_draws_every_panel_without_an_error(tmp_path, kind):
    file = tmp_path / "page.html"
    page = page_of(experiment(tmp_path / "exp", 20, 6), kind)
    catch = "<script>addEventListener('error', (e) => document.body.append('FAILED ' + e.message));</script>"
    point = """<script>for (const each of document.querySelectorAll("svg")) {
      const box = each.getBoundingClientRect();
      const place = {clientX: box.right - 70, clientY: box.bottom - 80};
      each.dispatchEvent(new PointerEvent("pointermove", place));
      each.dispatchEvent(new PointerEvent("pointerleave"));
    }
    for (const each of document.querySelectorAll("button")) each.click();</script>"""
    file.write_text(
        page.replace("<body>", f"<body>{catch}").replace("</body>", f"{point}</body>"), encoding="utf-8"
    )
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        profile,
        "--dump-dom",
        file.as_uri(),
    ]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "FAILED" not in dumped.replace("'FAILED '", "")
    wanted = {"curves": 20, "parallel": 18, "importance": 0, "all": 38}[kind]  # 2 of 20 have no finite end
    assert len(re.findall(r'class="(?:line|best-line)"', dumped)) == wanted
    assert ("chance" in dumped.partition("<main")[2].partition("</main>")[0]) == (
        kind in ("all", "importance")
    )
