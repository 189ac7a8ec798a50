"""Drivers that end: nothing stays in Slurm's queue, and another driver adopts the pilots that run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.series import IS_WHOLE

from muster.cli.tune.experiment import read_experiment

pytestmark = pytest.mark.slow
SCRIPT = """
import os, sys, time
from pathlib import Path
from muster import tune

def train(config):
    first = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            first = int((Path(folder) / "step").read_text()) + 1
    for step in range(first, 12):
        time.sleep(0.15)
        with open(config["notes"], "a") as notes:
            notes.write(f"{step} {os.environ['SLURM_JOB_ID']}\\n")
        made = Path(f"made-{step}")
        made.mkdir(exist_ok=True)
        (made / "step").write_text(str(step))
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))

if __name__ == "__main__":
    folder = sys.argv[1]
    pilots = tune.SlurmConfig(time="10", reconnect_s=float(sys.argv[2]))
    run = tune.RunConfig(name="e", storage_path=folder, verbose=0, engine=pilots)
    grid = tune.Tuner(train, param_space={"notes": folder + "/notes"}, run_config=run).fit()
    print(grid[0].metrics["step"], grid[0].error)
"""


class ScriptDriver:
    """A driver in its own process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.notes = folder, folder / "notes"
        (folder / "script.py").write_text(SCRIPT)
        self.process = self.start(sys.executable, "script.py", str(folder), *arguments)

    def start(self, *command: str) -> subprocess.Popen[str]:
        out = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out, text=True)

    def steps(self) -> list[list[str]]:
        return [line.split() for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def wait_for(self, count: int) -> None:
        give_up = time.monotonic() + 30
        while len(self.steps()) < count:
            assert time.monotonic() < give_up and self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)


def test_a_killed_driver_resumes_with_the_pilot_that_it_left(slurm_site, tmp_path):
    driver = ScriptDriver(tmp_path, "60")
    driver.wait_for(3)
    driver.process.kill()
    driver.process.communicate()
    assert len(slurm_site.alive()) == 1
    resumed = driver.start(sys.executable, "-m", "muster", "tune", "resume", str(tmp_path / "e"))
    out, errors = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, (out, errors)
    steps = driver.steps()
    assert [int(step) for step, _ in dict(steps).items()] == list(range(12))
    assert len(steps) <= 13 and len({job for _, job in steps}) == 1


def test_commands_run_in_pilots_without_python_code(slurm_site, tmp_path):
    command = """printf '{{"job": %s, "x": %s}}\\n' $SLURM_JOB_ID {x}"""
    tune_run = [sys.executable, "-m", "muster", "tune", "run", command]
    options = ["--shell", "--space", "x=grid:1,2", "--metric", "x", "--engine", "slurm", "--json"]
    where = ["--storage", str(tmp_path), "--name", "e"]
    done = subprocess.run(
        [*tune_run, *options, *where], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    trials = read_experiment(str(tmp_path / "e")).trials
    assert sorted(trial.result["x"] for trial in trials) == [1, 2]
    assert all(trial.result["job"] > 0 for trial in trials)


def test_pilots_of_a_driver_that_does_not_return_leave(slurm_site, tmp_path):
    driver = ScriptDriver(tmp_path, "1")
    driver.wait_for(1)
    driver.process.kill()
    driver.process.communicate()
    slurm_site.wait(lambda: not slurm_site.alive(), within_s=15)


def test_ctrl_c_cancels_running_and_queued_pilots(slurm_site, tmp_path):
    driver = ScriptDriver(tmp_path, "60")
    driver.wait_for(1)
    os.kill(driver.process.pid, signal.SIGINT)
    driver.process.communicate(timeout=30)
    slurm_site.wait(lambda: not slurm_site.alive(), within_s=10)


def submit(site, folder):
    """Submit the script, and return the directory of its jobs once trials have reported."""
    (folder / "my script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "muster", "tune", "submit", "--time", "20"]
    words = ["my script.py", "--", str(folder), "60"]
    subprocess.run([*command, *words], cwd=folder, check=True, capture_output=True)
    notes = folder / "notes"
    site.wait(lambda: notes.exists() and len(notes.read_text().splitlines()) >= 3)
    return next((folder / "muster-jobs").iterdir())


def test_scancel_of_a_submitted_driver_leaves_no_pilot(slurm_site, tmp_path):
    folder = submit(slurm_site, tmp_path)
    subprocess.run(["scancel", (folder / "jobs").read_text().strip()], check=True)
    slurm_site.wait(lambda: not slurm_site.alive(), within_s=10)


def test_a_submitted_driver_continues_in_a_second_job(slurm_site, tmp_path):
    folder = submit(slurm_site, tmp_path)
    notes, first = tmp_path / "notes", (folder / "jobs").read_text().strip()
    subprocess.run(["scancel", "--signal=USR2", "--batch", first], check=True)
    slurm_site.wait(lambda: not slurm_site.alive(), within_s=40)
    first, second = (folder / "jobs").read_text().split()
    assert (folder / f"{second}.out").read_text().split()[-2:] == ["11", "None"]
    steps = [line.split() for line in notes.read_text().splitlines()]
    assert list(map(int, dict(steps))) == list(range(12))
    assert len(steps) <= 13 and len({job for _, job in steps}) == 1


@pytest.mark.skipif(not IS_WHOLE, reason="long: make series")
def test_the_script_of_the_tutorial_runs(slurm_site, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "slurm.md").read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(page.partition("```python\n")[2].partition("```")[0])
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=60, check=True
    )
    assert "'lr'" in done.stdout.splitlines()[-1]
