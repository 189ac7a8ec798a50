"""The Slurm of the tests: one controller and four nodes of two CPUs for the whole session, started on demand.

A plugin of tests/conftest.py. Tests leave no job behind; `slurm_site` checks that after each of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools import slurm_here

from muster.slurm.jobs import SlurmJob
from muster.slurm.wire import SlurmWire

LEAVE_S = 45.0


class SlurmSite:
    """A running Slurm, and what tests do to it."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self.config = folder, config
        self.wire = SlurmWire()

    def alive(self) -> list[SlurmJob]:
        return [job for job in self.wire.squeue() if not job.has_ended]

    def wait(self, done: Callable[[], object], within_s: float = LEAVE_S) -> None:
        give_up = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < give_up, f"gave up waiting; jobs: {self.alive()}"
            time.sleep(0.2)

    def scontrol(self, *words: str) -> None:
        subprocess.run(["scontrol", *words], check=True, capture_output=True)

    def state_of(self, node: str) -> str:
        shown = subprocess.run(
            ["sinfo", "-h", "-n", node, "-o", "%T"], capture_output=True, text=True, check=True
        )
        return shown.stdout

    def kill_controller(self) -> None:
        """Kill it once it has written down which jobs run and which have ended.

        Killed before, it takes running jobs for waiting ones, and ended ones for running ones, for minutes.
        """
        file, began = self.folder / "state" / "job_state", time.time()
        running = [job for job in self.alive() if job.is_running]
        for job in running:
            self.scontrol("update", f"JobId={job.job_id}", "TimeLimit=30")
        self.wait(lambda: not running or (file.is_file() and file.stat().st_mtime > began))
        slurm_here.end(self.folder / "run" / "slurmctld.pid", 9)

    def start_controller(self) -> None:
        slurm_here.start_controller(self.config)


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[SlurmSite]:
    reason = slurm_here.why_not()
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    config = slurm_here.start(folder)
    os.environ["SLURM_CONF"] = str(config)
    yield SlurmSite(folder, config)
    slurm_here.stop(folder)
    del os.environ["SLURM_CONF"]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm_site(slurm_daemons: SlurmSite) -> Iterator[SlurmSite]:
    """A Slurm without jobs, before and after the test."""
    yield slurm_daemons
    slurm_daemons.wait(lambda: not slurm_daemons.alive())
