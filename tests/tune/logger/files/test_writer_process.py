"""Log files written by a process of their own: the same files, and nothing lost when it dies."""

from __future__ import annotations

import csv
import decimal
import enum
import json
import os
import re
import signal
import time
from collections import OrderedDict

import numpy as np
import pytest

from muster.base.clock import ManualClock
from muster.tune.logger.files.trial_log import CSV, JSON, TBX
from muster.tune.logger.files.writer import LogWriter

ALL = JSON | CSV | TBX


class Colour(enum.IntEnum):
    RED = 1


class Local:
    """Of a module that the other process could import, and must not need to."""

    def __repr__(self):
        return "a local thing"


class Tensor:
    """Like torch's: has a shape and numbers, and belongs to nobody else's library."""

    def __init__(self, values):
        self._values = np.array(values)
        self.ndim = self._values.ndim

    def __float__(self):
        return float(self._values)

    def __array__(self, dtype=None, copy=None):
        return self._values

    def __str__(self):
        return f"tensor({self._values.tolist()})"


def with_process(folder, clock=None, **more):
    """A writer whose process is in use."""
    writer = LogWriter(clock, **{"flush_every_s": 0.005, "process_from": 1, **more})
    nothing, deadline = writer.log("", str(folder / "nothing")), time.monotonic() + 30
    while not (writer._forwarder and writer._forwarder.is_in_use):
        assert time.monotonic() < deadline
        for _ in range(2):  # no file has the number 8; two at once are seen to be more than one
            writer.row(nothing, 8, {})
        time.sleep(0.005)
        writer.flush(0.05)  # the first of the two may have been taken alone, and the next turn be far away
    assert writer.flush(30)
    return writer


def process_of(writer):
    return writer._forwarder._remote.pid


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def iterations(path):
    return [json.loads(line)["training_iteration"] for line in path.read_text().splitlines()]


def row(n, config=None, **more):
    return {"training_iteration": n, "loss": n / 3, "text": "a,\n\u2028", "config": config, **more}


def written(writer, folder):
    config = {"x": 1, "nested": {"y": [1, 2.5, None]}}
    odd_config = {"x": Local(), "f": len, 3: (1, 2), "nan": float("nan")}
    for name, its in (("plain", config), ("odd", odd_config)):
        log = writer.log(name, str(folder / name))
        writer.start(log, ALL, its, (0, 0))
        writer.row(log, ALL, row(1, its))
        writer.row(log, ALL, row(2, its, nested={"a": 1, "b": {"c": 2}}, nan=float("nan"), big=10**30))
        writer.row(log, ALL, row(3, its, f64=np.float64(0.1), f32=np.float32(0.1), i=np.int64(3)))
        writer.row(log, ALL, row(4, its, array=np.arange(6.0).reshape(2, 3), names=np.array(["a", "b"])))
        writer.row(log, ALL, row(5, its, t0=Tensor(0.5), t2=Tensor([[1, 2]]), d=decimal.Decimal("1.5")))
        writer.row(log, ALL, row(6, its, c=Colour.RED, o=OrderedDict(a=Local()), l=[np.float64(1), Local()]))
        writer.row(
            log, ALL, row(7, {**config, "x": 2}, s={1}, b=b"bytes", u=None, z=np.datetime64("2020-01-01"))
        )
        writer.row(log, ALL, {**row(8), ("odd", "key"): 1, 5: 2})
        writer.fail(log, b"Failure # 1 (now)\n", b"pickle")
        writer.end(name)
    log = writer.log("again", str(folder / "odd"))
    writer.start(log, ALL, odd_config, (8, 8))
    writer.row(log, ALL, row(9, odd_config, v=np.float32(0.1)))
    writer.end("again")
    assert writer.close(20)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_process_writes_what_the_thread_writes(tmp_path):
    by_thread = written(LogWriter(ManualClock(), process_from=None), tmp_path / "thread")
    by_process = written(with_process(tmp_path, ManualClock()), tmp_path / "process")
    assert by_process == by_thread
    assert len(by_thread) == 14


def test_rows_arrive_in_order_flush_waits_for_them_and_close_ends_the_process(tmp_path):
    writer = with_process(tmp_path)
    pid = process_of(writer)
    log = writer.log("t", str(tmp_path / "t"))
    for n in range(1, 3001):
        writer.row(log, ALL, row(n))
    assert writer.flush(20)
    assert iterations(tmp_path / "t" / "result.json") == list(range(1, 3001))
    assert is_there(pid)
    assert writer.close(20)
    assert not is_there(pid)
    assert writer.take_problems() == ()
    writer.row(log, JSON, row(3001))
    assert writer.close(20)
    assert iterations(tmp_path / "t" / "result.json") == list(range(1, 3002))


@pytest.mark.slow
def test_a_trial_that_the_thread_began_goes_on_in_the_process_with_the_same_files(tmp_path):
    writer = LogWriter(flush_every_s=0.005, process_from=300)
    log = writer.log("t", str(tmp_path / "t"))
    writer.start(log, ALL, {}, (0, 0))
    for n in range(1, 11):
        writer.row(log, ALL, row(n))
    assert writer.flush(20)
    assert writer._forwarder is None
    for n in range(11, 5001):
        writer.row(log, ALL, row(n))
        if n % 1000 == 0:
            time.sleep(0.1)
    writer.row(log, ALL, row(5001, new=1))
    assert writer.close(20)
    assert iterations(tmp_path / "t" / "result.json") == list(range(1, 5002))
    assert sorted(path.name for path in (tmp_path / "t").iterdir())[1:] == [
        "params.json",
        "params.pkl",
        "progress.csv",
        "result.json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("chance", range(4))
def test_a_process_that_is_killed_costs_no_row_and_doubles_none(tmp_path, chance):
    writer = with_process(tmp_path)
    pid = process_of(writer)
    for number in range(40):
        for trial in (f"ended{number}", "long", "restarted"):
            log = writer.log(trial, str(tmp_path / trial))
            if trial != "long" or number == 0:
                after = 10 if trial == "restarted" and number else 0
                writer.start(log, ALL, {"x": 1}, (after, after))
            base = {"long": 50 * number, "restarted": 10 if number else 0}.get(trial, 0)
            for n in range(base + 1, base + 51):
                writer.row(log, ALL, row(n, wide=1) if n > 45 else row(n))
            if trial.startswith("ended"):
                writer.fail(log, b"Failure # 1 (%d)\n" % number, None)
                writer.end(trial)
        time.sleep(0.002 * chance)
        if number == 20:
            os.kill(pid, signal.SIGKILL)
    assert writer.close(20)
    for number in range(40):
        folder = tmp_path / f"ended{number}"
        assert iterations(folder / "result.json") == list(range(1, 51))
        assert (folder / "progress.csv").read_text().count("\u2028") == 50
        assert (folder / "error.txt").read_text() == f"Failure # 1 ({number})\n"
    assert iterations(tmp_path / "long" / "result.json") == list(range(1, 2001))
    assert (tmp_path / "long" / "progress.csv").read_text().count("\u2028") == 2000
    assert iterations(tmp_path / "restarted" / "result.json") == list(range(1, 61))
    assert (tmp_path / "restarted" / "progress.csv").read_text().count("\u2028") == 60
    (problem,) = writer.take_problems()
    assert re.search(r": RuntimeError: .* signal 9;", problem)


@pytest.mark.slow
@pytest.mark.parametrize("chance", range(3))
def test_rows_that_repeat_iterations_or_have_none_are_told_apart_when_the_process_is_killed(tmp_path, chance):
    writer = with_process(tmp_path)
    pid = process_of(writer)
    for number in range(60):
        log = writer.log("exploits", str(tmp_path / "exploits"))
        writer.start(log, ALL, {"x": number}, (50 * number, None))  # from another trial's checkpoint
        for n in range(1, 51):
            writer.row(log, ALL, row(n % 10, {"x": number, "y": float("nan")}, stamp=50 * number + n))
            writer.row(writer.log("none", str(tmp_path / "none")), ALL, {"stamp": 50 * number + n})
        if number == 5:
            assert writer.flush(20)
        time.sleep(0.001 * chance)
        if number == 20 + 10 * chance:
            os.kill(pid, signal.SIGKILL)
    assert writer.close(20)
    for trial in ("exploits", "none"):
        lines = (tmp_path / trial / "result.json").read_text().splitlines()
        assert [json.loads(line)["stamp"] for line in lines] == list(range(1, 3001))
        with (tmp_path / trial / "progress.csv").open(newline="", encoding="utf-8") as file:
            assert [int(record["stamp"]) for record in csv.DictReader(file)] == list(range(1, 3001))


@pytest.mark.slow
def test_who_waits_for_a_flush_does_not_wait_in_vain_for_a_process_that_was_killed(tmp_path):
    writer = with_process(tmp_path, flush_every_s=60)
    log = writer.log("t", str(tmp_path / "t"))
    os.kill(process_of(writer), signal.SIGSTOP)
    for n in range(1, 101):
        writer.row(log, JSON, row(n))
    ticket = writer.mark()
    assert not ticket.wait(0.3)
    os.kill(process_of(writer), signal.SIGKILL)
    assert ticket.wait(20)
    assert iterations(tmp_path / "t" / "result.json") == list(range(1, 101))
    assert writer.close(20)


@pytest.mark.slow
@pytest.mark.parametrize("waiting", ["flush", "close", "much to send"])
def test_a_process_that_was_stopped_is_continued_and_named(tmp_path, waiting):
    writer = with_process(tmp_path)
    log = writer.log("t", str(tmp_path / "t"))
    pid, count = process_of(writer), 3000 if waiting == "much to send" else 100
    os.kill(pid, signal.SIGSTOP)
    for n in range(1, count + 1):
        writer.row(log, JSON, row(n, {"text": "x" * 1000}))
    assert waiting == "close" or writer.flush(20)
    assert writer.close(20)
    assert iterations(tmp_path / "t" / "result.json") == list(range(1, count + 1))
    what = f"the process that writes them (pid {pid}) was stopped by a signal and is continued"
    (problem,) = writer.take_problems()
    assert problem.endswith(what)


def test_a_directory_that_cannot_be_made_is_a_problem_of_its_trial_in_the_process_too(tmp_path):
    (tmp_path / "blocked").write_text("a file where a directory should be")
    writer = with_process(tmp_path)
    for name in ("blocked", "good"):
        writer.row(writer.log(name, str(tmp_path / name)), JSON, row(1))
    assert not writer.flush(20)
    (problem,) = writer.take_problems()
    assert problem.startswith(f"{tmp_path}/blocked")
    assert iterations(tmp_path / "good" / "result.json") == [1]
    (tmp_path / "blocked").unlink()
    deadline = time.monotonic() + 20
    while not writer.flush(20) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert iterations(tmp_path / "blocked" / "result.json") == [1]
    assert writer.close(20)


def test_what_the_process_could_not_write_is_tried_again_after_it_is_gone(tmp_path):
    (tmp_path / "blocked").write_text("a file where a directory should be")
    writer = with_process(tmp_path)
    log = writer.log("t", str(tmp_path / "blocked"))
    writer.row(log, JSON, row(1))
    assert not writer.close(20)
    (tmp_path / "blocked").unlink()
    writer.row(log, JSON, row(2))
    assert writer.close(20)
    assert iterations(tmp_path / "blocked" / "result.json") == [1, 2]


def test_a_row_that_cannot_be_shown_is_left_out_and_told(tmp_path):
    class Bad:
        def __str__(self):
            raise RuntimeError("no text")

    writer = with_process(tmp_path)
    log = writer.log("t", str(tmp_path / "t"))
    for n in range(1, 4):
        writer.row(log, JSON, row(n, **({"bad": Bad()} if n == 2 else {})))
    assert writer.close(20)
    assert iterations(tmp_path / "t" / "result.json") == [1, 3]
    assert writer.take_problems() == (f"{tmp_path}/t: RuntimeError: no text",)


def test_few_rows_start_no_process(tmp_path):
    writer = LogWriter(flush_every_s=0.005)
    log = writer.log("t", str(tmp_path / "t"))
    for n in range(1, 2001):
        writer.row(log, JSON, row(n))
        if n % 100 == 0:
            writer.flush(20)
    assert writer._forwarder is None
    assert writer.close(20)
