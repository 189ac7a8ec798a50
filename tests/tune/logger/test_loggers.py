"""What a trial's directory holds, as Ray lays it out."""

from __future__ import annotations

import json
import pickle
import threading

import pytest
from tests.tune.logger.harness import LoggerHarness, checkpoint_at, make_trial

from muster.errors import TuneError
from muster.trials.checkpoints import adopt
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.tune import logger as exported
from muster.tune.callback import Callback, CallbackList
from muster.tune.logger.csv import CSVLoggerCallback
from muster.tune.logger.json import JsonLoggerCallback
from muster.tune.logger.logger import LoggerCallback
from muster.tune.logger.tensorboardx import TBXLoggerCallback


def names(harness, trial):
    found = sorted(path.name for path in (harness.directory / trial.relative_logdir).iterdir())
    return ["events" if name.startswith("events.out.tfevents.") else name for name in found]


def failed(exception=b"\x80\x04N.", traceback="Traceback\nValueError: boo\n"):
    return TrialFailure(
        kind=TrialFailureKind.USER_ERROR, message="boo", traceback=traceback, exception=exception
    )


def test_the_names_of_ray_are_exported():
    assert [getattr(exported, name) for name in exported.__all__ if name != "pretty_print"] == [
        CSVLoggerCallback,
        JsonLoggerCallback,
        LoggerCallback,
        TBXLoggerCallback,
    ]
    with pytest.raises(AttributeError, match="NoSuchLogger"):
        exported.NoSuchLogger  # noqa: B018


def test_a_trial_leaves_rays_five_files(harness):
    trial = make_trial(config={"x": 1, "fn": len})
    harness.start(trial)
    harness.report(trial, 1, loss=0.5)
    harness.report(trial, 2, loss=0.25)
    harness.complete(trial)
    assert harness.writer.close(5)
    assert names(harness, trial) == ["events", "params.json", "params.pkl", "progress.csv", "result.json"]
    assert harness.rows(trial) == [
        {"loss": 0.5, "training_iteration": 1},
        {"loss": 0.25, "training_iteration": 2},
    ]
    assert (
        harness.path(trial, "progress.csv").read_bytes() == b"loss,training_iteration\r\n0.5,1\r\n0.25,2\r\n"
    )
    assert json.loads(harness.path(trial, "params.json").read_text()) == {"x": 1, "fn": str(len)}
    assert pickle.loads(harness.path(trial, "params.pkl").read_bytes()) == {"x": 1, "fn": len}
    assert harness.writer.take_problems() == ()


def test_a_config_with_a_lambda_is_pickled_and_one_that_cannot_be_is_a_problem(harness):
    twice, stuck = make_trial("a", {"f": lambda x: 2 * x}), make_trial("b", {"lock": threading.Lock()})
    for trial in (twice, stuck):
        harness.start(trial)
        harness.complete(trial)
    assert harness.writer.close(5)
    assert pickle.loads(harness.path(twice, "params.pkl").read_bytes())["f"](3) == 6
    assert names(harness, stuck) == ["events", "params.json", "result.json"]
    (problem,) = harness.writer.take_problems()
    assert "params.pkl" in problem


def test_a_trial_that_fails_before_it_reports_leaves_what_ray_leaves(harness):
    trial = make_trial(num_failures=1)
    harness.start(trial)
    harness.fire("on_trial_failure", trial, failure=failed())
    harness.fire("on_trial_error", trial)
    assert harness.writer.close(5)
    assert names(harness, trial) == [
        "error.pkl",
        "error.txt",
        "events",
        "params.json",
        "params.pkl",
        "result.json",
    ]
    assert harness.path(trial, "result.json").read_bytes() == b""
    assert harness.path(trial, "error.pkl").read_bytes() == b"\x80\x04N."
    assert (trial.error_filename, trial.pickled_error_filename) == ("error.txt", "error.pkl")


def test_failures_are_added_to_the_text_and_the_latest_exception_is_kept(harness):
    trial = make_trial(num_failures=1)
    harness.fire("on_trial_failure", trial, failure=failed(b"first"))
    trial.num_failures = 2
    harness.fire("on_trial_failure", trial, failure=failed(b"second", traceback=""))
    trial.num_failures = 3
    harness.fire("on_trial_failure", trial, failure=failed(None))
    harness.fire("on_trial_error", trial)
    assert harness.writer.close(5)
    lines = harness.path(trial, "error.txt").read_text().splitlines()
    assert [line.split(" (occurred at ")[0] for line in lines] == [
        "Failure # 1",
        "Traceback",
        "ValueError: boo",
        "Failure # 2",
        "boo",
        "Failure # 3",
        "Traceback",
        "ValueError: boo",
    ]
    latest = pickle.loads(harness.path(trial, "error.pkl").read_bytes())
    assert repr(latest) == repr(TuneError("Traceback\nValueError: boo\n"))


def test_new_keys_widen_the_table_instead_of_being_lost(harness):
    trial = make_trial()
    harness.start(trial)
    harness.report(trial, 1, loss=1.0, text="a,\n\"b'")
    assert harness.writer.flush(5)
    harness.report(trial, 2, loss=2.0, late=7)
    assert harness.writer.flush(5)
    harness.report(trial, 3, later={"x": 8})
    harness.report(trial, 4, latest=9)
    assert harness.writer.close(5)
    columns = ["loss", "text", "training_iteration", "late", "later/x", "latest"]
    values = [
        ["1.0", "a,\n\"b'", "1", "", "", ""],
        ["2.0", "", "2", "7", "", ""],
        ["", "", "3", "", "8", ""],
        ["", "", "4", "", "", "9"],
    ]
    assert harness.table(trial) == [dict(zip(columns, row, strict=True)) for row in values]


def test_what_a_callback_adds_before_the_loggers_is_logged(tmp_path):
    class Adds(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            result["added"] = True

    harness, trial = LoggerHarness(tmp_path, [Adds()]), make_trial()
    harness.start(trial)
    harness.report(trial, 1)
    assert harness.writer.close(5)
    assert harness.rows(trial) == [{"training_iteration": 1, "added": True}]


def test_a_callback_between_two_loggers_changes_only_the_second(tmp_path):
    class Adds(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            result["added"] = True

    harness, trial = LoggerHarness(tmp_path, [CSVLoggerCallback(), Adds()]), make_trial()
    harness.start(trial)
    harness.report(trial, 1)
    assert harness.writer.close(5)
    assert harness.table(trial) == [{"training_iteration": "1"}]
    assert harness.rows(trial) == [{"training_iteration": 1, "added": True}]


def test_a_retry_from_a_checkpoint_replaces_the_rows_after_it(harness):
    trial = make_trial()
    harness.start(trial)
    for iteration in (1, 2, 3):
        harness.report(trial, iteration, attempt=1)
    trial.checkpoints = (checkpoint_at(harness, trial, 2),)
    harness.fire("on_trial_recover", trial)
    harness.start(trial)
    for iteration in (3, 4):
        harness.report(trial, iteration, attempt=2)
    harness.complete(trial)
    assert harness.writer.close(5)
    expected = [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert [(row["attempt"], row["training_iteration"]) for row in harness.rows(trial)] == expected
    assert [(int(r["attempt"]), int(r["training_iteration"])) for r in harness.table(trial)] == expected


def test_a_retry_from_the_beginning_replaces_all_rows(harness):
    trial = make_trial()
    harness.start(trial)
    harness.report(trial, 1, attempt=1)
    harness.writer.flush(5)
    harness.start(trial)
    harness.report(trial, 1, attempt=2)
    assert harness.writer.close(5)
    assert harness.rows(trial) == [{"attempt": 2, "training_iteration": 1}]
    assert harness.table(trial) == [{"attempt": "2", "training_iteration": "1"}]


def test_a_checkpoint_of_another_trial_leaves_the_past_as_it_is(harness):
    trial, donor = make_trial(), make_trial("donor")
    harness.start(trial)
    for iteration in (1, 2, 3):
        harness.report(trial, iteration)
    adopt(trial, checkpoint_at(harness, donor, 2))
    harness.start(trial)
    harness.report(trial, 3)
    assert harness.writer.close(5)
    assert [row["training_iteration"] for row in harness.rows(trial)] == [1, 2, 3, 3]


@pytest.mark.conformance("C-200")
def test_another_process_goes_on_where_a_killed_one_left_torn_files(tmp_path):
    first, trial = LoggerHarness(tmp_path), make_trial()
    first.start(trial)
    for iteration in (1, 2, 3):
        first.report(trial, iteration, loss=0.5)
    assert first.writer.close(5)
    with first.path(trial, "result.json").open("ab") as file:
        file.write(b'{"loss":0.')
    with first.path(trial, "progress.csv").open("ab") as file:
        file.write(b"0.5,")
    second = LoggerHarness(tmp_path)
    trial.checkpoints = (checkpoint_at(second, trial, 2),)
    second.start(trial)
    second.report(trial, 3, loss=0.25, new=1)
    second.complete(trial)
    assert second.writer.close(5)
    assert [(row["training_iteration"], row["loss"]) for row in second.rows(trial)] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.25),
    ]
    assert [row["new"] for row in second.table(trial)] == ["", "", "1"]
    assert second.writer.take_problems() == ()


def test_a_users_own_logger_gets_rays_calls():
    class Mine(LoggerCallback):
        def __init__(self):
            self.seen = []

        def log_trial_start(self, trial):
            self.seen.append(("start", trial))

        def log_trial_restore(self, trial):
            self.seen.append(("restore", trial))

        def log_trial_save(self, trial):
            self.seen.append(("save", trial))

        def log_trial_result(self, iteration, trial, result):
            self.seen.append(("result", iteration, trial, result))

        def log_trial_end(self, trial, failed=False):
            self.seen.append(("end", trial, failed))

    mine, trial = Mine(), make_trial()
    hooks = CallbackList([mine])
    for hook in (
        "on_trial_start",
        "on_trial_restore",
        "on_trial_save",
        "on_trial_complete",
        "on_trial_error",
    ):
        hooks.fire(hook, iteration=0, trials=[], trial=trial)
    hooks.fire("on_trial_result", iteration=5, trials=[], trial=trial, result={"a": 1})
    assert mine.seen == [
        ("start", trial),
        ("restore", trial),
        ("save", trial),
        ("end", trial, False),
        ("end", trial, True),
        ("result", 5, trial, {"a": 1}),
    ]


def test_a_subclass_of_a_file_logger_keeps_its_own_ways(tmp_path):
    class Half(JsonLoggerCallback):
        def log_trial_result(self, iteration, trial, result):
            if result["training_iteration"] % 2:
                super().log_trial_result(iteration, trial, result)

    harness, trial = LoggerHarness(tmp_path, [Half()]), make_trial()
    harness.start(trial)
    for iteration in (1, 2, 3):
        harness.report(trial, iteration)
    assert harness.writer.close(5)
    assert [row["training_iteration"] for row in harness.rows(trial)] == [1, 3]
    assert [row["training_iteration"] for row in harness.table(trial)] == ["1", "2", "3"]


def test_a_file_logger_outside_an_experiment_says_what_to_do():
    with pytest.raises(TuneError, match="RunConfig"):
        JsonLoggerCallback().log_trial_start(make_trial())


def test_neighbouring_file_loggers_are_served_as_one(harness):
    served = harness.hooks._served["on_trial_result"]
    assert [handler.__self__.kinds for handler in served] == [7]
