"""Run the driver of `bench slurm` in its own process; make the faults of its pilots and of Slurm."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster import tune
from muster.slurm.jobs import SlurmJob
from muster.slurm.wire import SlurmWire

STEPS = 8
LEARN_STEPS, FACTOR = 9, 3  # of successive halving
HURRY = "hurry"  # a file: trials have nothing more to wait for
ROOT = Path(__file__).resolve().parent.parent


def busy(config: dict[str, Any]) -> None:
    for step in range(config["count"]):
        tune.report({"step": step})


def learning(rate: float) -> Iterator[tuple[int, float]]:
    """Yield the steps of a trial and their losses, each after 0.5 to 2 s."""
    step_s = random.Random(rate).uniform(0.5, 2.0)
    for step in range(1, LEARN_STEPS + 1):
        time.sleep(step_s)
        yield step, rate + 1.0 / step


def sleep_and_learn(config: dict[str, Any]) -> None:
    for _, loss in learning(config["lr"]):
        tune.report({"loss": loss})


def save_every_step(config: dict[str, Any]) -> None:
    first = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            first = int((Path(folder) / "step").read_text()) + 1
    for step in range(first, STEPS):
        pilot = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}.{os.getpid()}"
        with (Path(config["notes"]) / tune.get_context().get_trial_id()).open("a") as notes:
            notes.write(f"{step} {pilot}\n")
        time.sleep(0.0 if (Path(config["notes"]).parent / HURRY).exists() else 0.25)
        made = Path(f"made-{step}")
        made.mkdir(exist_ok=True)
        (made / "step").write_text(str(step))
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))


def start(how: str, folder: Path, trials: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.slurm_driver", how, str(folder), str(trials)]
    return subprocess.Popen(command, cwd=ROOT, stderr=(folder / "driver.err").open("ab"))


def fault(number: int, pilot: SlurmJob, driver: subprocess.Popen[bytes], folder: Path, *, quick: bool) -> Any:
    """Make one fault and return the driver, which may be another process then.

    The seventh kind, a time limit of 60 s, comes by itself.
    """
    wire, kind = SlurmWire(), number % 6
    if kind == 0:
        wire.scancel([pilot.job_id])
    elif kind == 1:
        subprocess.run(["scontrol", "requeue", pilot.job_id], check=False, capture_output=True)
    elif kind == 2:
        for state in ("DOWN", "RESUME"):
            words = [f"NodeName={pilot.nodes}", f"State={state}", "Reason=bench"]
            subprocess.run(["scontrol", "update", *words], check=False, capture_output=True)
            time.sleep(2.0)
    elif kind == 3:
        wire.sbatch(
            ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"], "#!/bin/sh\nsleep 2\n"
        )
    elif kind == 4:
        from tools import slurm_here

        site = Path(os.environ["SLURM_CONF"]).parent
        slurm_here.end(site / "run" / "slurmctld.pid", signal.SIGKILL)
        time.sleep(5.0 if quick else 30.0)
        slurm_here.start_controller(site / "slurm.conf")
        time.sleep(2.0)
    else:
        driver.kill()
        driver.wait()
        return start("resume", folder, 0)
    return driver


def outcome(folder: Path, trials: int) -> dict[str, float]:
    """Return how many trials did not come to their end, and steps that were repeated without a reason."""
    analysis = tune.ExperimentAnalysis(str(folder / "e"))
    done = sum(
        trial.status == "TERMINATED" and trial.last_result["step"] == STEPS - 1 for trial in analysis.trials
    )
    repeated = unexplained = 0
    for file in (folder / "notes").iterdir():
        noted = [line.split() for line in file.read_text().splitlines()]
        more, moves = len(noted) - len({step for step, _ in noted}), len({pilot for _, pilot in noted}) - 1
        repeated, unexplained = repeated + more, unexplained + max(0, more - moves)
    return {
        "faults.lost": float(trials - done),
        "faults.repeated": float(repeated),
        "faults.repeated_unexplained": float(unexplained),
    }


def main() -> None:
    how, folder, trials = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if how == "resume":
        tune.Tuner.restore(str(folder / "e"), save_every_step).fit()
        return
    (folder / "notes").mkdir()
    pilots = tune.SlurmConfig(time="1", max_pilots=4, pilot_cpus=1, reconnect_s=60, extra=["--requeue"])
    tune.Tuner(
        save_every_step,
        param_space={"notes": str(folder / "notes")},
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(name="e", storage_path=str(folder), verbose=0, engine=pilots),
    ).fit()


if __name__ == "__main__":
    main()
