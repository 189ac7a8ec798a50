"""A run of the tests that is interrupted ends what it has started, also in the processes of xdist."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.rack import wait_until

ROOT = Path(__file__).parents[2]
TEST = """
import pathlib, subprocess, time
import pytest

@pytest.fixture(scope="session")
def head():
    started = subprocess.Popen(["sleep", "300"], start_new_session=True)
    draft = pathlib.Path(r"{folder}/draft")
    draft.write_text(str(started.pid))
    draft.rename(r"{folder}/pid")
    yield started
    time.sleep(300)  # longer than xdist waits
    started.kill()

def test_that_waits(head):
    time.sleep(300)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tmp_path):
    file = tmp_path / "test_waiting.py"
    file.write_text(TEST.format(folder=tmp_path))
    command = [sys.executable, "-m", "pytest", "-p", "tests.ray_clusters", "-n", "1", "-q", str(file)]
    run = subprocess.Popen(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path)],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    noted = tmp_path / "pid"
    try:
        wait_until(lambda: noted.exists() or run.poll() is not None, "the test runs")
        pid = int(noted.read_text())
        os.killpg(run.pid, signal.SIGINT)
        run.wait(timeout=60)
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "it is ended")
