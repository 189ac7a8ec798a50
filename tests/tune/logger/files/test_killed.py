"""kill -9 while rows are being written: what is left is whole rows from the first on, once each."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tune.logger.harness import LoggerHarness, checkpoint_at, make_trial

from muster.host.processes import find

ROOT = Path(__file__).parents[4]


def wait_until_gone(pid):
    deadline = time.monotonic() + 20
    while (found := find(pid)) is not None and found.is_alive:
        assert time.monotonic() < deadline, "the process that writes logs outlived its driver"
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["thread", "process"])
def test_a_killed_writer_leaves_files_that_another_goes_on_with(tmp_path, by):
    command = [sys.executable, "-m", "tests.tune.logger.files.killed_child", str(tmp_path), by]
    harness, trial = LoggerHarness(tmp_path), make_trial()
    table = harness.path(trial, "progress.csv")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        try:
            pid = int(child.stdout.readline()) if by == "process" else None
            before, deadline = table.stat().st_size if table.exists() else 0, time.monotonic() + 60
            while not (table.exists() and table.stat().st_size > before + 500_000):  # the longest to come
                assert child.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.002)
        finally:
            child.kill()
    if pid is not None:
        wait_until_gone(pid)
    trial.checkpoints = (checkpoint_at(harness, trial, 500),)
    harness.start(trial)
    harness.report(trial, 501, loss=0.0)
    harness.complete(trial)
    assert harness.writer.close(10)
    assert [row["training_iteration"] for row in harness.rows(trial)] == list(range(1, 502))
    assert [int(row["training_iteration"]) for row in harness.table(trial)] == list(range(1, 502))
    assert harness.writer.take_problems() == ()
