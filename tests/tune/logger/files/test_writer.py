"""The writer thread: order, bounds, problems that do not end it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time

import pytest

from muster.tune.logger.files import log_files as files
from muster.tune.logger.files import trial_log
from muster.tune.logger.files.log_files import OpenFiles
from muster.tune.logger.files.trial_log import CSV, JSON, TBX
from muster.tune.logger.files.writer import LogWriter


def numbers(path):
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_rows_arrive_in_order_and_flush_waits_for_them(tmp_path):
    writer = LogWriter(flush_every_s=60)
    log = writer.log("t", str(tmp_path / "t"))
    for n in range(3000):
        writer.row(log, JSON, {"n": n})
    assert writer.flush(10)
    assert numbers(tmp_path / "t" / "result.json") == list(range(3000))
    assert writer.close(10)


def test_a_result_that_changes_after_it_was_logged_is_logged_as_it_was(tmp_path):
    writer = LogWriter(flush_every_s=60)
    result = {"n": 1, "done": False}
    writer.row(writer.log("t", str(tmp_path / "t")), JSON, result)
    result["done"] = True
    writer.close(10)
    assert (tmp_path / "t" / "result.json").read_bytes() == b'{"n":1,"done":false}\n'


def test_a_new_row_after_close_is_written_too(tmp_path):
    writer = LogWriter(flush_every_s=0.01)
    log = writer.log("t", str(tmp_path / "t"))
    writer.row(log, JSON, {"n": 1})
    assert writer.close(10)
    writer.row(log, JSON, {"n": 2})
    assert writer.close(10)
    assert numbers(tmp_path / "t" / "result.json") == [1, 2]
    assert writer.close(10)


def test_trials_with_the_same_keys_do_not_get_each_others_new_columns(tmp_path):
    writer = LogWriter(flush_every_s=60)
    logs = [writer.log(name, str(tmp_path / name)) for name in "ab"]
    for log in logs:
        writer.start(log, CSV, {}, (0, 0))
        writer.row(log, CSV, {"x": 1, "y": 2})
    assert writer.flush(10)
    writer.row(logs[0], CSV, {"x": 3, "y": 4, "new": 5})
    writer.row(logs[1], CSV, {"x": 6, "y": 7})
    writer.close(10)
    assert (tmp_path / "a" / "progress.csv").read_bytes() == b"x,y,new\r\n1,2,\r\n3,4,5\r\n"
    assert (tmp_path / "b" / "progress.csv").read_bytes() == b"x,y\r\n1,2\r\n6,7\r\n"


def test_nothing_to_write_starts_no_thread():
    before = threading.active_count()
    writer = LogWriter()
    assert (writer.flush(), writer.close(), threading.active_count()) == (True, True, before)


def test_a_directory_that_cannot_be_made_is_a_problem_and_others_go_on(tmp_path):
    (tmp_path / "blocked").write_text("a file where a directory should be")
    writer = LogWriter(flush_every_s=0.01)
    bad, good = writer.log("bad", str(tmp_path / "blocked")), writer.log("good", str(tmp_path / "good"))
    for n in range(3):
        writer.row(bad, JSON, {"n": n})
        writer.row(good, JSON, {"n": n})
    assert not writer.flush(10)
    (problem,) = writer.take_problems()
    assert problem.startswith(f"{tmp_path}/blocked")
    assert "Not a directory" in problem
    assert numbers(tmp_path / "good" / "result.json") == [0, 1, 2]
    (tmp_path / "blocked").unlink()
    assert writer.close(10)
    assert numbers(tmp_path / "blocked" / "result.json") == [0, 1, 2]


def test_a_full_disk_leaves_no_torn_row_and_is_tried_again(tmp_path, monkeypatch):
    real, room = os.write, [25]

    def write(descriptor, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(descriptor, bytes(data)[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(files.os, "write", write)
    writer = LogWriter(flush_every_s=0.01)
    log = writer.log("t", str(tmp_path / "t"))
    path = tmp_path / "t" / "result.json"
    writer.row(log, JSON, {"n": 1})
    assert writer.flush(10)
    for n in (2, 3, 4):
        writer.row(log, JSON, {"n": n})
    assert not writer.flush(10)
    assert numbers(path) == [1]
    assert any(os.strerror(errno.ENOSPC) in problem for problem in writer.take_problems())
    room[0] = 10_000
    assert writer.close(10)
    assert numbers(path) == [1, 2, 3, 4]


def test_a_value_that_cannot_be_written_costs_only_itself(tmp_path):
    class Bad:
        def __str__(self):
            raise RuntimeError("no text")

    writer = LogWriter(flush_every_s=60)
    log = writer.log("t", str(tmp_path / "t"))
    for n in range(4):
        writer.row(log, JSON | CSV | TBX, {"n": n, **({"bad": Bad()} if n == 2 else {})})
    assert writer.close(10)
    assert numbers(tmp_path / "t" / "result.json") == [0, 1, 2, 3]
    assert (tmp_path / "t" / "progress.csv").read_bytes().split(b"\r\n")[1:5] == [b"0", b"1", b"2", b"3"]
    (problem,) = writer.take_problems()
    assert problem.endswith("RuntimeError: no text")


def test_a_long_queue_holds_the_producer_back(tmp_path):
    writer = LogWriter(flush_every_s=60, queue_limit=100)
    log = writer.log("t", str(tmp_path / "t"))
    longest = 0
    for n in range(5000):
        writer.row(log, JSON, {"n": n})
        longest = max(longest, len(writer._queue))
    assert writer.close(10)
    assert longest <= 100
    assert numbers(tmp_path / "t" / "result.json") == list(range(5000))


def test_a_disk_that_stands_still_costs_rows_but_not_the_experiment(tmp_path, monkeypatch):
    writer = LogWriter(flush_every_s=60, queue_limit=10, block_timeout_s=0.05)
    log, stuck = writer.log("t", str(tmp_path / "t")), threading.Event()
    monkeypatch.setitem(trial_log._VERBS, "stand still", lambda log, context: stuck.wait(20))
    writer.order(log, ("stand still",))
    began = time.monotonic()
    for n in range(1000):
        writer.row(log, JSON, {"n": n})
    assert time.monotonic() - began < 5
    stuck.set()
    assert writer.close(10)
    kept = numbers(tmp_path / "t" / "result.json")
    assert kept[:9] == list(range(9))
    assert kept == sorted(kept)
    assert len(kept) < 30
    assert any(problem.startswith(f"{1000 - len(kept)} ") for problem in writer.take_problems())


def test_few_files_are_open_at_a_time_and_all_rows_arrive(tmp_path):
    opened = OpenFiles(limit=3)
    for round_ in range(2):
        for n in range(8):
            files.append_all(opened.descriptor(str(tmp_path / f"{n}")), b"%d" % round_)
            assert len(opened) <= 3
    opened.close_all()
    assert [(tmp_path / f"{n}").read_bytes() for n in range(8)] == [b"01"] * 8
    assert len(opened) == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_trial_that_is_over_keeps_no_file_open(tmp_path, ended):
    writer = LogWriter(flush_every_s=0.01)
    log = writer.log("t", str(tmp_path / "t"))
    writer.row(log, JSON | CSV | TBX, {"n": 1})
    writer.flush(10)
    if ended:
        writer.end("t")
        writer.flush(10)
    assert len(writer._file_writer.context.open_files) == (0 if ended else 3)
    assert len(writer.running) == (0 if ended else 1)
    writer.close(10)


def test_an_order_that_fails_does_not_end_the_thread(tmp_path):
    writer = LogWriter(flush_every_s=0.01)
    log = writer.log("t", str(tmp_path / "t"))
    writer.order(log, ("no such order",))
    writer.row(log, JSON, {"n": 1})
    assert writer.close(10)
    assert numbers(tmp_path / "t" / "result.json") == [1]
    assert writer.take_problems() == (f"{tmp_path}/t: KeyError: 'no such order'",)
    assert writer.take_problems() == ()


def test_a_start_keeps_so_many_rows_whatever_their_iterations_are(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "result.json").write_bytes(b'{"n":1,"training_iteration":1}\n{"n":2,"trai')
    (folder / "progress.csv").write_bytes(b"n,training_iteration\r\n1,1\r\n7,7\r\n2,2\r\n3,3\r\n")
    writer = LogWriter(flush_every_s=0.01)
    log = writer.log("t", str(folder))
    writer.start(log, JSON | CSV, {}, (1, None))
    for n in (7, 4):
        writer.row(log, JSON | CSV, {"n": n, "training_iteration": n})
    assert writer.close(10)
    assert numbers(folder / "result.json") == [1, 7, 4]
    assert (folder / "progress.csv").read_bytes() == b"n,training_iteration\r\n1,1\r\n7,7\r\n4,4\r\n"
