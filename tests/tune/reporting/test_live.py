from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.terminal import Terminal

from muster.tune.callback import Callback
from muster.tune.reporting.live import LiveReporter

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("live_program.py")
TUNER = Path(__file__).with_name("tuner_program.py")

AFTERWARDS = ["after the end", "the script continues"]  # of a child and of the driver: in any order
TABLE = [
    "  trial            status         x  k  iter  time (s)     loss",
    "★ obj_a1a89_00005  TERMINATED  1.25  2     3       1.5  0.16667",
    "  obj_a1a89_00004  TERMINATED     1  1     3       1.5      0.2",
    "  obj_a1a89_00003  TERMINATED  0.75  0     3       1.5     0.25",
    "  obj_a1a89_00002  TERMINATED   0.5  2     3       1.5  0.33333",
    "  obj_a1a89_00001  TERMINATED  0.25  1     3       1.5      0.5",
    "  obj_a1a89_00000  TERMINATED     0  0     3       1.5        1",
]


def test_the_view_follows_the_experiment_and_leaves_a_summary(tmp_path):
    terminal = Terminal(PROGRAM, "end", tmp_path / "go on")
    terminal.until("1 RUNNING · 2 TERMINATED")
    terminal.until("a trial prints")
    terminal.until("★ obj_a1a89_00002")  # a frame may arrive in several pieces
    shown = [line.rstrip() for line in terminal.screen.display]
    assert [line for line in shown if "BasicVariantGenerator" in line or "★" in line] == [
        "try  BasicVariantGenerator · FIFOScheduler",
        "★ loss 0.33333  a1a89_00002  x=0.5 k=2",
        "★ obj_a1a89_00002  RUNNING      0.5  2     3       1.5  0.33333",
    ]
    (tmp_path / "go on").touch()
    assert terminal.finish() == 0
    page = terminal.page()
    begins = page.index("try  BasicVariantGenerator · FIFOScheduler")
    above, below = page[:begins], page[begins:]
    assert sorted(line for line in above if line) == [
        "WARNING the driver logs",
        "a note",
        "a trial prints",
        "the driver prints",
    ]
    assert below[3].startswith("━" * 48 + "  6/6  100%")
    assert below[4] == "6 TERMINATED"
    assert below[6:13] == TABLE
    assert_view("live/terminal_end", "\n".join(below[5:-2]))
    assert sorted(below[-2:]) == AFTERWARDS
    assert not terminal.screen.cursor.hidden


def test_an_exception_gives_the_terminal_back():
    terminal = Terminal(PROGRAM, "abort", __file__)
    assert terminal.finish() == 0
    page = terminal.page()
    assert page[-3] == "still a terminal: True"
    assert sorted(page[-2:]) == AFTERWARDS
    assert not any("RUNNING" in line for line in page)
    assert not terminal.screen.cursor.hidden


def test_ctrl_c_leaves_the_way_back_on_the_screen():
    terminal = Terminal(PROGRAM, "stopped", __file__, columns=60, lines=24)
    assert terminal.finish() == 0
    shown = "".join(line.ljust(60) for line in terminal.page())
    assert re.findall(r"\d of \d", shown) == ["6 of 6"]
    assert " resume /results/try" in shown


def test_detailed_levels_tell_events_above_the_view():
    terminal = Terminal(PROGRAM, "detailed", __file__, columns=120)
    assert terminal.finish() == 0
    told = [line.split()[1:3] for line in terminal.page() if line.startswith("Trial ")]
    assert told[:2] == [["obj_a1a89_00000", "started"], ["obj_a1a89_00000", "completed"]]
    assert len(told) == 12


def test_no_colour_means_no_colour():
    terminal = Terminal(PROGRAM, "end", __file__, NO_COLOR="1")
    assert terminal.finish() == 0
    colours = [f"\x1b[{code}" for code in ("31", "32", "33", "36", "38;")]
    assert [code for code in colours if code.encode() in terminal.raw] == []


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_terminal_that_cannot_redraw_gets_plain_lines(kind):
    terminal = Terminal(PROGRAM, "end", __file__, TERM=kind)
    assert terminal.finish() == 0
    assert b"\x1b" not in terminal.raw
    assert any(line.endswith(": 6 TERMINATED") for line in terminal.page())


def test_the_live_view_does_not_listen_to_results():
    assert LiveReporter.on_trial_result is Callback.on_trial_result


def test_a_real_experiment_is_followed_to_its_end(tmp_path):
    terminal = Terminal(TUNER, tmp_path, tmp_path / "go on")
    terminal.until("★ loss 1 ")
    (tmp_path / "go on").touch()
    assert terminal.finish() == 0
    page = terminal.page()
    assert page[4].startswith("3 TERMINATED")
    assert [line.split()[-1] for line in page[7:10]] == ["0.5", "1", "1.5"]
    assert page[-1] == "3 results"


def test_ctrl_c_on_a_real_experiment_stops_gently_and_says_how_to_go_on(tmp_path):
    terminal = Terminal(TUNER, tmp_path, tmp_path / "never", columns=200)
    terminal.until("★ loss 1 ")
    terminal.interrupt()
    assert terminal.finish() == 0
    assert_view("live/ctrl_c", "\n".join(terminal.page()[-4:]).replace(str(tmp_path), "TMP"))
