"""The table of the README is what the recorded runs say."""

from __future__ import annotations

import json
import re

from tests.tune.crash import test_kill, test_kill_on_ray
from tools import measured


def test_the_readme_shows_the_recorded_figures(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    assert measured.written(text, json.loads(measured.RECORD.read_text(encoding="utf-8"))) == text


def test_the_claims_of_the_readme_are_those_of_the_record_and_of_the_series(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    figures = json.loads(measured.RECORD.read_text(encoding="utf-8"))["runs"]["tune"]["figures"]
    ours, peer = figures["seconds.first_result"], figures["peer_seconds.first_result"]
    claim = re.search(r"(\d+) times sooner.*?\| (\d+ ms) against (\S+ s) ", text)
    assert claim is not None
    assert claim.groups() == (f"{peer / ours:.0f}", measured.number(ours, "s"), f"{peer:.1f} s")
    kills = 4 * len(test_kill.CELLS) + 2 * 10 + 2 * len(test_kill_on_ray.CELLS)
    assert f"kills the driver {kills} times" in text


def test_a_line_says_by_which_factor_ours_is_better_whichever_way_round():
    fast = measured.Row("rate", "tune", "a", "b", "", "", True)
    slow = measured.Row("time", "tune", "a", "", "b")
    figures = {"a": 0.25, "b": 0.5}
    assert measured.line(fast, figures) == "| rate | 0.25 | Ray 0.5 | 0.5x |"
    assert measured.line(slow, figures) == "| time | 250 ms | Optuna 500 ms | 2x |"


def test_the_last_line_of_a_log_is_recorded_with_its_command(tmp_path):
    log = tmp_path / "tune-quick.log"
    log.write_text('noise\n{"bench": "tune", "figures": {"x": 1.0}}\n', encoding="utf-8")
    run = measured.recorded([log], "busy")["runs"]["tune"]
    assert (run["command"], run["figures"]) == ("python -m bench tune --quick", {"x": 1.0})
