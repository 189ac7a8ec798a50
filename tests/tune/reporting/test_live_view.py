from __future__ import annotations

import io

from rich.console import Console
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, finish, move, run_info, start, step, trial

from muster.base.clock import ManualClock
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.tune.reporting.live_view import ASCII, LiveView, glyphs_for
from muster.tune.reporting.periodic import PeriodicReporter


class Watching(PeriodicReporter):
    """Keeps the snapshots."""

    def show(self, snapshot, trials):
        self.shown = snapshot

    def conclude(self, snapshot, trials, *, interrupted):
        self.shown = snapshot


def lines(parts, width):
    page = Console(
        file=io.StringIO(), width=width, height=200, color_system=None, highlight=False, markup=False
    )
    for part in parts:
        page.print(part, soft_wrap=isinstance(part, str))
    return [line.rstrip() for line in page.file.getvalue().splitlines()]


def half_way(**changes):
    """Twenty trials: six finished, one failed, two running."""
    clock = ManualClock(NOW)
    reporter = Watching(clock=clock, period_s=0.25)
    reporter.begin(run_info(directory="/nest/me/results/try", **changes))
    trials = [trial(n, "PENDING", loss=1 / (n + 1)) for n in range(9)]
    trials += [trial(n, "PENDING") for n in range(9, 20)]
    step(reporter, trials)
    for each in trials[:9]:
        start(reporter, trials, each)
    for each in trials[:6]:
        finish(reporter, trials, each)
    failed = trials[6]
    failed.num_failures, failed.error_filename = 1, "error.txt"
    failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message="Traceback\nValueError: boom")
    reporter.on_trial_failure(iteration=0, trials=trials, trial=failed, failure=failure)
    reporter.on_trial_error(iteration=0, trials=trials, trial=move(failed, "ERROR"))
    clock.advance(10)
    step(reporter, trials)
    return reporter.shown, trials


def test_the_view_shows_progress_the_best_trials_and_failures():
    snapshot, _ = half_way()
    shown = lines([LiveView(home="/nest/me").draw(snapshot, (100, 40))], 100)
    assert_view("live/half_way", "\n".join(shown))


def test_sixty_columns_lose_columns_and_not_their_meaning():
    snapshot, _ = half_way()
    shown = lines([LiveView().draw(snapshot, (60, 40))], 60)
    assert max(map(len, shown)) <= 60
    assert shown[4:6] == [
        "━━──────────────  7/50  14%  10s  1min 1s left",
        "2 RUNNING · 6 TERMINATED · 11 PENDING · 1 ERROR",
    ]
    assert shown[10] == "  trial            status         x  k  iter     loss"


def test_a_low_window_keeps_the_head():
    snapshot, _ = half_way()
    shown = lines([LiveView().draw(snapshot, (100, 12))], 100)
    assert len(shown) == 12
    assert not any("trial            status" in line for line in shown)
    shown = lines([LiveView().draw(snapshot, (100, 17))], 100)
    assert len(shown) <= 17
    assert next(line.split()[:2] for line in shown if "obj_" in line) == ["obj_a1a89_00007", "RUNNING"]


def test_a_terminal_without_box_lines_gets_ascii():
    snapshot, _ = half_way()
    shown = "\n".join(lines([LiveView(glyphs_for("ascii")).draw(snapshot, (100, 40))], 100))
    assert shown.isascii()
    assert shown.splitlines()[4].startswith("######------")
    assert glyphs_for("ascii") is ASCII


def test_columns_do_not_shrink_while_numbers_change():
    snapshot, trials = half_way()
    view = LiveView()
    before = lines([view.draw(snapshot, (100, 40))], 100)[10]
    for each in trials[:9]:
        each.last_result["loss"] = 1
    assert lines([view.draw(snapshot, (100, 40))], 100)[10] == before


def test_without_a_total_there_is_a_count_and_no_bar():
    snapshot, _ = half_way(total=None, time_budget_s=70.0)
    words = lines([LiveView().draw(snapshot, (100, 40))], 100)[4].split()
    assert (words[0], words[3:]) == ("7", ["10s", "1min", "0s", "left"])


def test_the_end_stays_on_the_terminal():
    snapshot, trials = half_way()
    shown = lines(
        LiveView(home="/nest/me").conclusion(snapshot, trials[:7], (100, 40), interrupted=False), 100
    )
    assert shown[6] == "  trial            status         x  k  iter  time (s)     loss"
    assert [line.split()[-1] for line in shown[7:14]] == [
        "0.16667",
        "0.2",
        "0.25",
        "0.33333",
        "0.5",
        "1",
        "0.14286",
    ]
    assert_view("live/conclusion", "\n".join(shown))


def test_a_run_that_was_stopped_leaves_out_what_was_not_tried_and_says_how_to_go_on():
    snapshot, trials = half_way()
    shown = lines(LiveView().conclusion(snapshot, trials, (100, 40), interrupted=True), 100)
    assert not any("a1a89_00019" in line for line in shown)
    assert_view("live/stopped", "\n".join(shown))


def test_a_wide_terminal_is_used():
    snapshot, _ = half_way()
    shown = lines([LiveView().draw(snapshot, (220, 40))], 220)
    narrow = lines([LiveView().draw(snapshot, (60, 40))], 60)
    assert len(shown[10]) > len(narrow[10])


def test_after_ctrl_c_nothing_is_said_to_run():
    snapshot, trials = half_way()
    text = "\n".join(lines(LiveView().conclusion(snapshot, trials, (100, 40), interrupted=True), 100))
    rows = text[text.index("trial   ") :]
    assert "INTERRUPTED" in rows
    assert "RUNNING" not in rows
