from __future__ import annotations

import re

from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, finish, run_info, start, step, trial

from muster.base.clock import ManualClock
from muster.tune.reporting.notebook import REFRESH_S, NotebookReporter


def begun(**changes):
    pages, clock = [], ManualClock(NOW)
    reporter = NotebookReporter(clock=clock, output=lambda: pages.append)
    reporter.begin(run_info(total=4, **changes))
    return reporter, pages, clock


def words(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def test_one_block_is_updated_in_place_and_not_too_often():
    reporter, pages, clock = begun()
    trials = [trial(n, "PENDING", loss=1.0 - n / 4 if n < 2 else None) for n in range(4)]
    assert len(pages) == 1
    step(reporter, trials)
    for each in trials[:2]:
        start(reporter, trials, each)
        finish(reporter, trials, each)
        step(reporter, trials)
    assert len(pages) == 2
    clock.advance(REFRESH_S)
    step(reporter, trials)
    assert len(pages) == 3
    assert_view("live/notebook", words(pages[-1]))


def test_what_users_wrote_is_escaped():
    reporter, pages, _ = begun(name="<script>alert(1)</script>")
    reporter.note("<i>")
    each = trial(0, "ERROR", loss=1.0, failures=1)
    each.custom_trial_name = "<b>bold</b>"
    reporter.end(interrupted=False, trials=[each])
    assert "<script" not in pages[-1]
    assert "<b>bold" not in pages[-1]
    assert "&lt;i&gt;" in pages[-1]
    assert "/results/try/trial_0/error.txt" in pages[-1]


def test_a_stopped_run_says_how_to_go_on():
    reporter, pages, _ = begun()
    reporter.end(interrupted=True, trials=[trial(0, loss=1.0)])
    assert " resume /results/try" in pages[-1]
