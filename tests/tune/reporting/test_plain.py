from __future__ import annotations

import io

import pytest
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
    assert said(stream) == [
        "╭────────────────────────────────────────────────────────╮",
        "│ Configuration for experiment     try                   │",
        "├────────────────────────────────────────────────────────┤",
        "│ Search algorithm                 BasicVariantGenerator │",
        "│ Scheduler                        FIFOScheduler         │",
        "│ Number of trials                 50                    │",
        "│ Objective                        min loss              │",
        "│ Time budget                      1hr 0min 5s           │",
        "╰────────────────────────────────────────────────────────╯",
        "Results go to: /results/try",
    ]


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
    assert said(stream) == [
        "",
        "Trial status: 12 TERMINATED | 2 PENDING",
        "Current time: 2026-11-15 21:37:35. Total running time: 30s, 24 trials/min, about 1min 35s left",
        "Logical resource usage: 2.0/2 CPUs, 0/0 GPUs",
        "Current best trial: a1a89_00011 with loss=-1.9 and params={'x': 2.75, 'k': 2}",
    ]


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
    assert shown[1] == "Trial status: 10 RUNNING | 10 TERMINATED | 10 PENDING"
    table = [line.split()[2] for line in shown if line.startswith("│ obj")]
    assert table == ["RUNNING"] * 5 + ["TERMINATED"] * 5 + ["PENDING"] * 5
    assert shown[-1] == "5 more RUNNING, 5 more TERMINATED, 5 more PENDING"


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
    assert said(stream) == [
        "Trial obj_a1a89_00000 completed after 3 iterations at 2026-11-15 21:38:10. "
        "Total running time: 1min 5s, loss=0.33333",
        "Trial obj_a1a89_00001 errored after 3 iterations at 2026-11-15 21:38:10. "
        "Total running time: 1min 5s",
        "  ValueError: boom",
        "Error file: /results/try/trial_1/error.txt",
    ]


def test_a_trial_that_is_tried_again_is_told():
    reporter, stream, _ = begun()
    each = trial(0, "RUNNING", failures=1)
    said(stream)
    fail(reporter, [each], each, "KeyError: 'x'")
    reporter.on_trial_recover(iteration=0, trials=[each], trial=move(each, "PENDING"))
    assert said(stream) == ["Trial obj_a1a89_00000 failed and is tried again: KeyError: 'x'"]


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
    told = [line for line in shown if line.startswith("Trial obj")]
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
    assert said(stream)[:3] == ["... 1,240 more trials finished", "", "Trial status: 1260 TERMINATED"]


def test_level_two_tells_of_starts_results_and_checkpoints():
    reporter, stream, _ = begun(2)
    each = trial(0, "PENDING", loss=0.25)
    said(stream)
    start(reporter, [each], each)
    reporter.on_trial_result(iteration=0, trials=[each], trial=each, result=each.last_result)
    checkpoint = type("C", (), {"path": "/results/try/trial_0/checkpoint_000000"})()
    reporter.on_checkpoint(iteration=0, trials=[each], trial=each, checkpoint=checkpoint)
    assert said(stream) == [
        "Trial obj_a1a89_00000 started at 2026-11-15 21:37:05. Total running time: 0s",
        "Trial obj_a1a89_00000 finished iteration 3 at 2026-11-15 21:37:05. "
        "Total running time: 0s, loss=0.25",
        "Trial obj_a1a89_00000 saved a checkpoint for iteration 3 at: "
        "(local)/results/try/trial_0/checkpoint_000000",
    ]


def test_level_three_shows_configurations_and_whole_results():
    reporter, stream, _ = begun(3)
    each = trial(0, "PENDING", loss=0.25, pid=12, nested={"a": 1.5})
    said(stream)
    start(reporter, [each], each)
    reporter.on_trial_result(iteration=0, trials=[each], trial=each, result=each.last_result)
    assert said(stream) == [
        "Trial obj_a1a89_00000 started with configuration:",
        "╭──────────────────────────────╮",
        "│ Trial obj_a1a89_00000 config │",
        "├──────────────────────────────┤",
        "│ x                        0.0 │",
        "│ k                          0 │",
        "╰──────────────────────────────╯",
        "Trial obj_a1a89_00000 finished iteration 3 at 2026-11-15 21:37:05. "
        "Total running time: 0s, loss=0.25",
        "╭──────────────────────────────╮",
        "│ Trial obj_a1a89_00000 result │",
        "├──────────────────────────────┤",
        "│ training_iteration         3 │",
        "│ time_total_s             1.5 │",
        "│ loss                    0.25 │",
        "│ nested/a                 1.5 │",
        "╰──────────────────────────────╯",
    ]


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
    assert said(stream) == [
        "",
        "Trial status: 2 TERMINATED | 1 ERROR",
        "Current time: 2026-11-15 21:37:10. Total running time: 5s",
        "╭────────────────────────────────────────────────────────────────────────────────────╮",
        "│ Trial name          status            x     k     iter     total time (s)     loss │",
        "├────────────────────────────────────────────────────────────────────────────────────┤",
        "│ obj_a1a89_00001     TERMINATED     0.25     1        3                1.5        1 │",
        "│ obj_a1a89_00000     TERMINATED        0     0        3                1.5        2 │",
        "│ obj_a1a89_00002     ERROR           0.5     2        3                1.5      0.5 │",
        "╰────────────────────────────────────────────────────────────────────────────────────╯",
        "Number of errored trials: 1",
        "╭────────────────────────────────────────────────────────────────────╮",
        "│ Trial name           # failures     error file                     │",
        "├────────────────────────────────────────────────────────────────────┤",
        "│ obj_a1a89_00001*              1     /results/try/trial_1/error.txt │",
        "│ obj_a1a89_00002               2     /results/try/trial_2/error.txt │",
        "╰────────────────────────────────────────────────────────────────────╯",
        "* The trial terminated successfully after retrying.",
        "1 trial failed",
        "Best trial: obj_a1a89_00002 with loss=0.5",
        "  parameters: {'x': 0.5, 'k': 2}",
        "Results: /results/try",
        "  look at them:  muster tune show /results/try",
    ]


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
    assert raw.getvalue().decode("ascii").splitlines()[:3] == [
        "+--------------------------------------------------------+",
        "| Configuration for experiment     gr??e                 |",
        "+--------------------------------------------------------+",
    ]


def test_ctrl_c_prints_how_to_go_on():
    reporter, stream, _ = begun(directory="/results/my try")
    trials = [trial(0, loss=1.0), trial(1, "RUNNING", loss=2.0), trial(2, "PENDING")]
    said(stream)
    reporter.end(interrupted=True, trials=trials)
    shown = said(stream)
    assert "Trial status: 1 INTERRUPTED | 1 TERMINATED | 1 PENDING" in shown
    assert not any("RUNNING" in line for line in shown)
    assert shown[-3:] == [
        "Stopped early: 1 of 50 trials are done, and everything is saved. To continue:",
        "  in a shell:  muster tune resume '/results/my try'",
        "  in Python:   tune.Tuner.restore('/results/my try').fit()",
    ]


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
    assert "6 trials failed: ValueError: no luck with 0 (train.py:12)" in shown
    assert "3 trials failed: ValueError: no luck with 6 (train.py:30)" in shown


def test_a_metric_without_a_mode_is_said_again_at_the_end():
    reporter, stream, _ = begun(mode=None)
    said(stream)
    reporter.end(interrupted=False, trials=[trial(0, loss=2.0)])
    assert [line for line in said(stream) if "mode" in line] == [
        "No best trial by 'loss': set TuneConfig(mode='min' or 'max')"
    ]
