"""What Slurm does to pilots: no trial is lost or counted as failed, no step is repeated that was saved."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from tests.series import IS_WHOLE

from muster import tune
from muster.slurm.config import SlurmConfig

pytestmark = pytest.mark.slow
IN_SERIES = pytest.mark.skipif(not IS_WHOLE, reason="long: make series")
STEPS = 12


def train(config):
    """Save every step, and note each that begins in a file outside the trial's directory."""
    first = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            first = json.loads((Path(folder) / "step.json").read_text()) + 1
    for step in range(first, STEPS):
        with (Path(config["notes"]) / tune.get_context().get_trial_id()).open("a") as notes:
            notes.write(f"{step} {os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}\n")
        time.sleep(config["step_s"])
        made = Path(f"made-{step}")
        made.mkdir(exist_ok=True)
        (made / "step.json").write_text(json.dumps(step))
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))


class Experiment:
    """Runs an experiment of a few trials in a thread, while a test does something to its pilots."""

    def __init__(self, folder: Path, trials: int = 2, step_s: float = 0.15, **pilots) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        space = {"notes": str(self.notes), "step_s": step_s}
        self.tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(num_samples=trials),
            run_config=tune.RunConfig(
                name="faults",
                storage_path=str(folder),
                verbose=0,
                engine=SlurmConfig(**{"pilot_cpus": 1, "max_pilots": 2, "time": "10", **pilots}),
            ),
        )
        self.grid = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.grid = self.tuner.fit()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)

    def steps(self) -> list[list[int]]:
        return [[int(step) for step, _ in made] for made in self._noted()]

    def pilots(self) -> list[list[str]]:
        """Return the pilots that each trial was in."""
        return [list(dict.fromkeys(pilot for _, pilot in made)) for made in self._noted()]

    def _noted(self) -> list[list[tuple[str, ...]]]:
        files = sorted(self.notes.iterdir())
        return [[tuple(line.split()) for line in file.read_text().splitlines()] for file in files]

    def wait_for(self, count: int) -> None:
        """Wait until this many steps were made."""
        give_up = time.monotonic() + 30
        while sum(map(len, self.steps())) < count:
            assert time.monotonic() < give_up, self.steps()
            time.sleep(0.05)

    def check(self, faults: int = 1, moves: int = 1) -> None:
        """Check the outcome: so many faults hit a trial at most, so many trials moved at least."""
        assert self.grid is not None
        assert sum(len(pilots) > 1 for pilots in self.pilots()) >= moves, self.pilots()
        assert [result.error for result in self.grid] == [None] * len(self.grid)
        assert [result.metrics["step"] for result in self.grid] == [STEPS - 1] * len(self.grid)
        for made in self.steps():
            assert sorted(set(made)) == list(range(STEPS))
            assert len(made) - STEPS <= faults


def running(site):
    return [job for job in site.alive() if job.is_running]


def test_pilots_cancelled_by_somebody_are_replaced(slurm_site, tmp_path):
    with Experiment(tmp_path) as experiment:
        experiment.wait_for(4)
        slurm_site.wire.scancel([running(slurm_site)[0].job_id])
    experiment.check()


@IN_SERIES
def test_a_requeued_pilot_comes_back(slurm_site, tmp_path):
    with Experiment(tmp_path, max_pilots=1, pilot_cpus=2, extra=["--requeue"]) as experiment:
        experiment.wait_for(4)
        slurm_site.scontrol("requeue", running(slurm_site)[0].array_id)
    experiment.check(moves=2)


def test_trials_leave_a_pilot_of_a_node_that_is_down(slurm_site, tmp_path):
    with Experiment(tmp_path) as experiment:
        experiment.wait_for(4)
        node = running(slurm_site)[0].nodes
        slurm_site.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
        experiment.wait_for(8)
        if "down" in slurm_site.state_of(node):
            slurm_site.scontrol("update", f"NodeName={node}", "State=RESUME")
    experiment.check()


@IN_SERIES
def test_trials_run_on_while_the_controller_is_dead(slurm_site, tmp_path):
    with Experiment(tmp_path, trials=3, step_s=0.6) as experiment:
        experiment.wait_for(4)
        slurm_site.kill_controller()
        time.sleep(2)
        slurm_site.start_controller()
    experiment.check(faults=0, moves=0)


@IN_SERIES
def test_a_higher_partition_preempts_pilots(slurm_site, tmp_path):
    with Experiment(tmp_path, step_s=0.25) as experiment:
        experiment.wait_for(4)
        options = ["--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"]
        urgent = slurm_site.wire.sbatch(options, "#!/bin/sh\nsleep 1\n")
        slurm_site.wait(lambda: urgent not in [job.job_id for job in slurm_site.alive()])
    experiment.check(moves=2)
