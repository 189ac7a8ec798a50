from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from muster.tune.logger.tracker import BackgroundQueue

WAIT_S = 30  # for things that happen at once, on a busy machine too


class Tracker:
    """Records what it is sent; it can block, and fail."""

    def __init__(self, failures=()):
        self.sent = []
        self.failures = list(failures)
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def write(self, trial_id, rows):
        self.asked.set()
        assert self.open.wait(WAIT_S)
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append((trial_id, [result["n"] for result, _ in rows]))


def queue_to(tracker, **more):
    return BackgroundQueue("T", tracker.write, advice="Do this", **{"retry_first_s": 0.01, **more})


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_rows_of_a_trial_are_sent_together_and_orders_keep_their_place():
    tracker = Tracker()
    tracker.open.clear()
    queue = queue_to(tracker)
    queue.row("a", {"n": 0})
    assert tracker.asked.wait(WAIT_S)  # the rest waits while the first is being sent
    queue.row("a", {"n": 1})
    queue.row("b", {"n": 2})
    queue.row("a", {"n": 3})
    queue.order("a", lambda: tracker.sent.append("end of a"))
    queue.row("a", {"n": 4})
    queue.row("b", {"n": 5})
    tracker.open.set()
    assert queue.close(WAIT_S)
    assert tracker.sent == [("a", [0]), ("a", [1, 3]), ("b", [2, 5]), "end of a", ("a", [4])]


def test_a_result_may_change_after_it_was_logged():
    tracker = Tracker()
    queue = queue_to(tracker)
    result = {"n": 1}
    queue.row("a", result)
    result["n"] = 2
    assert queue.close(WAIT_S)
    assert tracker.sent == [("a", [1])]


@pytest.mark.slow
def test_nobody_waits_for_a_tracker_that_hangs(caplog):
    tracker = Tracker()
    tracker.open.clear()
    queue = queue_to(tracker, limit=3)
    queue.row("a", {"n": 0})
    assert tracker.asked.wait(WAIT_S)
    for n in range(1, 6):
        queue.row("a", {"n": n})
    assert queue.close(0.2) is False
    assert queue.lost == 5  # two for which there was no room, and three that wait
    tracker.open.set()
    waiting, lost = told(caplog)
    assert waiting.startswith("T: 3 ")
    assert lost.startswith("T: 5 ")
    assert "result.json" in lost


def test_a_tracker_that_is_down_for_a_while_loses_nothing_and_is_told_of_once(caplog):
    tracker = Tracker([ConnectionError("refused")] * 3)
    queue = queue_to(tracker)
    queue.row("a", {"n": 1})
    queue.row("b", {"n": 2})
    assert queue.close(WAIT_S)
    assert tracker.sent == [("a", [1]), ("b", [2])]
    (line,) = told(caplog)
    assert line.startswith("T: ConnectionError: refused. ")


def test_what_a_tracker_refuses_is_left_out_and_the_rest_is_sent(caplog):
    tracker = Tracker([ValueError("bad name")])
    queue = queue_to(tracker)
    queue.row("a", {"n": 1})
    queue.order("a", lambda: None)
    queue.row("a", {"n": 2})
    assert queue.close(WAIT_S) is False
    assert (tracker.sent, queue.lost) == ([("a", [2])], 1)
    refused, lost = told(caplog)
    assert refused.startswith("T: ValueError: bad name")
    assert lost.startswith("T: 1 ")
    assert "result.json" in lost


def test_the_end_does_not_wait_long_for_a_tracker_that_is_down():
    tracker = Tracker([ConnectionError("refused")] * 10_000)
    queue = queue_to(tracker, grace_s=0.1)
    queue.row("a", {"n": 1})
    assert queue.close(timeout_s=1000) is False  # the test's own time limit is far below
    assert queue.lost == 1


def test_a_script_that_breaks_off_still_sends_what_waits():
    script = """
from muster.tune.logger.tracker import BackgroundQueue
queue = BackgroundQueue("T", lambda trial_id, rows: print(trial_id, len(rows), flush=True))
for n in range(3):
    queue.order("a", lambda: None)
    queue.row("a", {"n": n})
raise SystemExit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("a 1\n" * 3, "", 3)


def test_an_empty_queue_has_no_thread_and_closes_at_once():
    before = threading.active_count()
    queue = queue_to(Tracker())
    assert threading.active_count() == before
    assert queue.close(WAIT_S)
    assert queue.close(WAIT_S)


@pytest.mark.parametrize("rows", [1, 10_000])
def test_everything_arrives_in_order(rows):
    tracker = Tracker()
    queue = queue_to(tracker)
    for n in range(rows):
        queue.row("a", {"n": n})
    assert queue.close(WAIT_S)
    assert [n for _, numbers in tracker.sent for n in numbers] == list(range(rows))
