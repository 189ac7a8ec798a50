from __future__ import annotations

import io
import re

import pytest
from tests.mistakes.views import assert_view
from tests.tune.reporting.examples import NOW, finish, move, run_info, start, step, trial

from muster.base.clock import ManualClock
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.tune.callback import Callback
from muster.tune.reporting.plain import HEARTBEAT_S, LINES_PER_WINDOW, DetailedPlainReporter, PlainReporter


class Utf8(io.StringIO):
    encoding = "utf-8"


def begun(level=1, **changes):
    stream, clock = Utf8(), ManualClock(NOW)
    kind = PlainReporter if level == 1 else DetailedPlainReporter
    reporter = kind(stream, clock=clock, level=level)
    reporter.begin(run_info(**changes))
    return reporter, stream, clock


def assert_shown(name, stream):
    assert_view(f"plain/{name}", "\n".join(said(stream)))


def said(stream):
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text.splitlines()


def fail(reporter, trials, each, message):
    failure = TrialFailure(kind=TrialFailureKind.USER_ERROR, message=message)
    reporter.on_trial_failure(iteration=0, trials=trials, trial=each, failure=failure)


def test_the_start_says_what_runs_and_where_it_is_written():
    _, stream, _ = begun(time_budget_s=3605)
    assert_shown("start", stream)


@pytest.mark.conformance("C-208")
def test_a_heartbeat_comes_every_thirty_seconds_and_not_before():
    reporter, stream, clock = begun()
    trials = [trial(n, "PENDING", loss=9.1 - n if n < 12 else None) for n in range(14)]
    step(reporter, trials)
    said(stream)
    for each in trials[:12]:
        start(reporter, trials, each)
        finish(reporter, trials, each)
    said(stream)
    clock.advance(HEARTBEAT_S - 0.1)
    step(reporter, trials)
    assert said(stream) == []
    clock.advance(0.1)
    step(reporter, trials)
    step(reporter, trials)
    assert_shown("heartbeat", stream)


@pytest.mark.conformance("C-205")
def test_from_level_two_on_a_heartbeat_has_a_table_of_five_rows_per_status():
    reporter, stream, clock = begun(2, metric=None, mode=None)
    states = ["RUNNING", "TERMINATED", "PENDING"]
    trials = [trial(n, states[n % 3]) for n in range(30)]
    step(reporter, trials)
    said(stream)
    clock.advance(HEARTBEAT_S)
    step(reporter, trials)
    shown = said(stream)
    assert_view("plain/heartbeat_with_table", "\n".join(shown))
    table = [line.split()[2] for line in shown if line.startswith("│ obj")]
    assert table == ["RUNNING"] * 5 + ["TERMINATED"] * 5 + ["PENDING"] * 5


def test_finished_and_failed_trials_have_a_line_each():
    reporter, stream, clock = begun()
    trials = [trial(0, "PENDING", loss=1 / 3), trial(1, "PENDING", loss=0.5, failures=1)]
    said(stream)
    for each in trials:
        start(reporter, trials, each)
    clock.advance(65)
    finish(reporter, trials, trials[0])
    fail(reporter, trials, trials[1], "Traceback ...\nValueError: boom")
    reporter.on_trial_error(iteration=0, trials=trials, trial=move(trials[1], "ERROR"))
    assert_shown("finished_and_failed", stream)


def test_a_trial_that_is_tried_again_is_told():
    reporter, stream, _ = begun()
    each = trial(0, "RUNNING", failures=1)
    said(stream)
    fail(reporter, [each], each, "KeyError: 'x'")
    reporter.on_trial_recover(iteration=0, trials=[each], trial=move(each, "PENDING"))
    assert_shown("tried_again", stream)


@pytest.mark.slow
def test_twenty_thousand_quick_trials_do_not_print_twenty_thousand_lines():
    reporter, stream, clock = begun(total=20_000)
    trials = [trial(n, "PENDING", loss=1.0) for n in range(20_000)]
    step(reporter, trials)
    said(stream)
    for each in trials:
        start(reporter, trials, each)
        finish(reporter, trials, each)
        step(reporter, trials)
        clock.advance(60 / 20_000)
    shown = said(stream)
    told = [line for line in shown if "obj_" in line]
    assert LINES_PER_WINDOW[1] < len(told) <= 3 * LINES_PER_WINDOW[1]
    assert len(shown) < 100
    reporter.end(interrupted=False, trials=trials)
    assert len(said(stream)) < 200


def test_what_was_not_told_is_summed_up_at_the_next_heartbeat():
    reporter, stream, clock = begun()
    trials = [trial(n, "PENDING", loss=1.0) for n in range(1260)]
    step(reporter, trials)
    said(stream)
    for each in trials:
        start(reporter, trials, each)
        finish(reporter, trials, each)
    assert len(said(stream)) == LINES_PER_WINDOW[1]
    clock.advance(HEARTBEAT_S)
    step(reporter, trials)
    assert_shown("summed_up", stream)


def test_level_two_tells_of_starts_results_and_checkpoints():
    reporter, stream, _ = begun(2)
    each = trial(0, "PENDING", loss=0.25)
    said(stream)
    start(reporter, [each], each)
    reporter.on_trial_result(iteration=0, trials=[each], trial=each, result=each.last_result)
    checkpoint = type("C", (), {"path": "/results/try/trial_0/checkpoint_000000"})()
    reporter.on_checkpoint(iteration=0, trials=[each], trial=each, checkpoint=checkpoint)
    assert_shown("level_two", stream)


def test_level_three_shows_configurations_and_whole_results():
    reporter, stream, _ = begun(3)
    each = trial(0, "PENDING", loss=0.25, pid=12, nested={"a": 1.5})
    said(stream)
    start(reporter, [each], each)
    reporter.on_trial_result(iteration=0, trials=[each], trial=each, result=each.last_result)
    assert_shown("level_three", stream)


def test_only_detailed_levels_listen_to_results():
    assert PlainReporter.on_trial_result is Callback.on_trial_result
    assert DetailedPlainReporter.on_trial_result is not Callback.on_trial_result


def test_the_end_shows_all_trials_what_failed_and_where_the_files_are():
    reporter, stream, clock = begun()
    trials = [
        trial(0, loss=2.0),
        trial(1, loss=1.0, failures=1),
        trial(2, "ERROR", loss=0.5, failures=2),
    ]
    said(stream)
    clock.advance(5)
    reporter.end(interrupted=False, trials=trials)
    assert_shown("end", stream)


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_an_experiment_goes_on_when_nobody_reads_along(error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    reporter = PlainReporter(Gone(), clock=ManualClock(NOW))
    reporter.begin(run_info())
    trials = [trial(0, "PENDING", loss=1.0)]
    start(reporter, trials, trials[0])
    finish(reporter, trials, trials[0])
    reporter.note("warning")
    reporter.end(interrupted=True, trials=trials)


def test_an_ascii_stream_gets_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    reporter = PlainReporter(stream, clock=ManualClock(NOW))
    reporter.begin(run_info(name="größe"))
    assert_view("plain/ascii", raw.getvalue().decode("ascii"))


def test_ctrl_c_prints_how_to_go_on():
    reporter, stream, _ = begun(directory="/results/my try")
    trials = [trial(0, loss=1.0), trial(1, "RUNNING", loss=2.0), trial(2, "PENDING")]
    said(stream)
    reporter.end(interrupted=True, trials=trials)
    shown = said(stream)
    assert not any("RUNNING" in line for line in shown)
    assert_view("plain/interrupted", "\n".join(shown))


TRACEBACK = """Traceback (most recent call last):
  File "/nest/me/train.py", line {line}, in train
    fit()
  File "/usr/lib/python3/site-packages/sklearn/base.py", line 99, in fit
    raise ValueError
ValueError: no luck with {x}
"""


def test_the_end_groups_failures_by_what_happened_and_where():
    reporter, stream, _ = begun()
    trials = [trial(number, "ERROR", failures=1) for number in range(9)]
    for number, each in enumerate(trials):
        fail(reporter, trials, each, TRACEBACK.format(line=12 if number < 6 else 30, x=number))
    said(stream)
    reporter.end(interrupted=False, trials=trials)
    shown = said(stream)
    groups = [re.findall(r"^\d+|\d \(.*\)", line) for line in shown if "ValueError" in line]
    assert groups == [["6", "0 (train.py:12)"], ["3", "6 (train.py:30)"]]


def test_a_metric_without_a_mode_is_said_again_at_the_end():
    reporter, stream, _ = begun(mode=None)
    said(stream)
    reporter.end(interrupted=False, trials=[trial(0, loss=2.0)])
    assert_shown("metric_without_mode", stream)
