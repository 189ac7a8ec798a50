"""A driver that is killed: its commands end, and a restore continues them from their checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.series import length
from tests.tune.commands.test_runner import processes_with

DRIVER = str(Path(__file__).with_name("driver.py"))
KILLS = length(sample=1, whole=100)


def run(storage, *words):
    return subprocess.run(
        [sys.executable, DRIVER, str(storage), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()


def killed(storage, kind, after_s):
    """Start a driver, and kill it when its trials have saved and some time has passed."""
    driver = subprocess.Popen([sys.executable, DRIVER, str(storage), "fit", kind])
    give_up = time.monotonic() + 60
    while not list(Path(storage).glob("e/*/checkpoint_000001")) and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(after_s)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_restore_continues_commands_from_their_last_checkpoint(tmp_path, seed):
    killed(tmp_path, "plain", (seed % 10) * 0.05)
    assert processes_with(f"MUSTER_TEST_TREE={tmp_path}", within_s=2.0) == []
    lines = sorted(run(tmp_path, "restore", "plain"))
    steps = " ".join(map(str, range(1, 7)))
    losses = [" ".join(str(x / 2**step) for step in range(6)) for x in (1.0, 2.0)]
    assert lines == sorted(f"None {steps} {each}" for each in losses)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_population_of_commands_survives_a_kill(tmp_path, seed):
    killed(tmp_path, "pbt", (seed % 10) * 0.05)
    rows = [line.split() for line in run(tmp_path, "restore", "pbt")]
    # A trial that copies another continues at the other's step: only the last one is the same for all.
    assert [(words[0], words[len(words) // 2]) for words in rows] == [("None", "6")] * 2
    taken = [path for path in tmp_path.glob("e/*/checkpoint_*") if path.is_dir()]
    assert taken
    assert all((path / "step").read_text().isdigit() for path in taken)
