from __future__ import annotations

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, move, run_info, step, trial

from muster.base.clock import ManualClock
from muster.tune.progress_reporter import (
    CLIReporter,
    DetailedLegacyReporter,
    LegacyReporter,
    ProgressReporter,
)


class Recording(ProgressReporter):
    """A user's reporter."""

    def __init__(self):
        self.calls = []
        self.wants = True

    def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **kwargs):
        self.calls.append(("setup", start_time, total_samples, metric, mode, kwargs))

    def should_report(self, trials, done=False):
        return self.wants or done

    def report(self, trials, done, *sys_info):
        self.calls.append(("report", len(trials), done, sys_info))


def driven(reporter, level=1, *, tables=False):
    clock = ManualClock(NOW)
    kind = LegacyReporter if level == 1 else DetailedLegacyReporter
    made = kind(reporter, clock=clock, level=level, tables=tables)
    made.begin(run_info())
    return made, clock


SYS_INFO = ("Using FIFO scheduling algorithm.", "Logical resource usage: 2.0/2 CPUs, 0/0 GPUs")


def test_a_users_reporter_is_set_up_asked_and_told():
    user = Recording()
    reporter, clock = driven(user)
    trials = [trial(0, "RUNNING")]
    step(reporter, trials)
    user.wants = False
    clock.advance(1)
    step(reporter, trials)
    reporter.end(interrupted=False, trials=trials)
    assert user.calls == [
        ("setup", NOW, 50, "loss", "min", {}),
        ("report", 1, False, SYS_INFO),
        ("report", 1, True, SYS_INFO),
    ]


def test_a_slow_reporter_is_asked_rarely():
    user = Recording()
    reporter, clock = driven(user)
    user.report = lambda trials, done, *sys_info: (user.calls.append(clock.monotonic()), clock.advance(1.0))
    user.calls.clear()
    for _ in range(1200):
        step(reporter, [])
        clock.advance(0.1)
    assert user.calls == pytest.approx([0.0, 1.1, 2.2, 52.3, 102.4], abs=0.5)


def test_without_stop_nothing_is_said_of_resuming(capsys):
    reporter, _ = driven(Recording())
    reporter.end(interrupted=False, trials=[])
    assert capsys.readouterr().out == ""
    reporter.end(interrupted=True, trials=[])
    assert " resume /results/try" in capsys.readouterr().out


def result(reporter, each):
    reporter.on_trial_result(iteration=0, trials=[each], trial=each, result=each.last_result)


def shown(level, capsys):
    """What an old console of this level prints over one result, the next one at once, the end."""
    console = CLIReporter(max_report_frequency=0)
    console._clock = ManualClock(NOW)
    reporter, _ = driven(console, level)
    each = trial(0, "RUNNING", loss=1.0)
    if level >= 2:
        result(reporter, each)
        result(reporter, each)
    step(reporter, [each])
    middle = capsys.readouterr().out
    if level >= 2:
        reporter.on_trial_complete(iteration=0, trials=[each], trial=each)
    reporter.end(interrupted=False, trials=[move(each, "TERMINATED")])
    return middle, capsys.readouterr().out


@pytest.mark.conformance("C-209")
def test_level_one_shows_the_status_and_no_table(capsys):
    middle, end = shown(1, capsys)
    assert (middle.count("== Status =="), end.count("== Status ==")) == (1, 1)
    assert "| obj_" not in middle + end
    assert "iteration" not in middle + end


@pytest.mark.conformance("C-209")
def test_level_two_shows_a_table_at_the_end_and_a_line_per_result(capsys):
    middle, end = shown(2, capsys)
    assert_view("legacy/level_two", f"{middle}{'=' * 20}\n{end}")
    assert "| obj_" not in middle


@pytest.mark.conformance("C-209")
def test_level_three_shows_tables_always_and_results_whole(capsys):
    middle, end = shown(3, capsys)
    assert_view("legacy/level_three", f"{middle}{'=' * 20}\n{end}")
    assert ["|", "time_total_s", "|", "1.5", "|"] in [line.split() for line in middle.splitlines()]


def test_many_results_between_two_reports_become_one_line(capsys):
    reporter, clock = driven(CLIReporter(max_report_frequency=0), 2)
    each = trial(0, "RUNNING", loss=1.0)
    for _ in range(2):
        for _ in range(103):
            result(reporter, each)
        step(reporter, [each])
        lines = capsys.readouterr().out.splitlines()
        assert sum("obj_a1a89_00000" in line and "iteration" in line for line in lines) == 100
        assert [line.split()[:3] for line in lines if line.startswith("...")] == [["...", "3", "more"]]
        clock.advance(5)


def test_a_reporter_that_was_passed_shows_its_table_at_any_level(capsys):
    reporter, _ = driven(CLIReporter(), 1, tables=True)
    step(reporter, [trial(0, "RUNNING", loss=1.0)])
    assert "| obj_a1a89_00000 |" in capsys.readouterr().out


def test_only_from_level_two_on_results_are_listened_to():
    from muster.tune.callback import Callback

    assert LegacyReporter.on_trial_result is Callback.on_trial_result
