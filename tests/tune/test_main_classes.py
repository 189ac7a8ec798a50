"""Objects of the script's own classes reach trials, come back in results, and outlive the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("main_classes.py")
SCORES = "scores [2.0, 4.0]"
MUSTER = ("-m", "muster.cli.main", "tune")


def run(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def killed(tmp_path):
    """A folder with an experiment whose driver was killed when both trials had reported once."""
    (tmp_path / "wait").touch()
    driver = subprocess.Popen([sys.executable, SCRIPT, tmp_path], start_new_session=True)
    try:
        give_up = time.monotonic() + 60
        while sum(len(file.read_text().splitlines()) for file in tmp_path.glob("exp/*/result.json")) < 2:
            assert driver.poll() is None and time.monotonic() < give_up
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    (tmp_path / "wait").unlink()
    return tmp_path


def test_they_reach_trials_and_come_back_as_what_they_were(tmp_path):
    assert SCORES in run(SCRIPT, tmp_path)


def test_a_script_that_resumes_knows_its_own_classes_again(killed):
    assert SCORES in run(SCRIPT, killed)


@pytest.mark.parametrize("options", [(), ("--script", SCRIPT)], ids=["saved", "script"])
def test_the_command_that_resumes_has_another_main(killed, options):
    run(*MUSTER, "resume", killed / "exp", *options)
    rows = json.loads(run(*MUSTER, "ls", killed / "exp", "--json"))["trials"]
    assert [(row["status"], row["score"]) for row in rows] == [("TERMINATED", 2.0), ("TERMINATED", 4.0)]
    assert SCORES in run(SCRIPT, killed)
