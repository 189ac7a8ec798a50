"""Measure trials on a real Slurm of this computer (4 nodes of 2 CPUs): overhead, calls, idle CPUs, faults.

Needs root and Debian's munge, slurmctld, slurmd and slurm-client. Scripts in front of `sbatch` and `squeue`
count their calls.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
from tools import slurm_here

from bench import slurm_driver, slurm_idle, table
from bench.options import Options
from muster import tune
from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.slurm.engine import SlurmEngine, SlurmOptions
from muster.slurm.config import SlurmConfig
from muster.slurm.wire import SlurmWire
from muster.trials.events import ContinueTrial, StartTrial, TrialExited, TrialReported
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import Engine
from muster.tune.schedulers import ASHAScheduler

FAULTS, FAULTS_OF_RUN = 120, 12  # faults-1 to faults-10 add up; each takes less than three minutes
CASES = (
    *("decisions", "first", "rate", "idle"),
    *(f"faults-{number}" for number in range(1, FAULTS // FAULTS_OF_RUN + 1)),
)
HALF = PlacementGroupFactory([{"CPU": 0.5}])
PILOTS, CPUS = 4, 2


def run(options: Options) -> dict[str, float]:
    """Measure, print the table, return the figures."""
    if reason := slurm_here.why_not():
        raise SystemExit(f"slurm: {reason}")
    figures: dict[str, float] = {}
    with site() as folder:
        for case in CASES[: CASES.index("faults-1") + 1] if options.quick else CASES:
            if options.wants(case):
                table.progress(f"slurm: {case}")
                for name, value in measure(case, folder / case, options).items():
                    figures[name] = figures.get(name, 0.0) + value
    rows = [(name, f"{value:.3f}") for name, value in figures.items()]
    table.show(f"slurm: {PILOTS} nodes of {CPUS} CPUs", ("figure", "ours"), rows)
    return figures


def measure(case: str, folder: Path, options: Options) -> dict[str, float]:
    kind, _, number = case.partition("-")
    if kind == "faults":
        return measure_faults(folder, options.quick, FAULTS_OF_RUN * (int(number) - 1))
    if kind == "idle":
        trials = 24 if options.quick else 100
        return slurm_idle.measure(folder, trials=trials, cpus=PILOTS * CPUS, with_peer=options.with_peer)
    return globals()[f"measure_{kind}"](folder, options.quick)


@contextmanager
def site() -> Iterator[Path]:
    """Yield a directory, while a Slurm runs whose commands are counted in it."""
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-slurm-"))
    config = slurm_here.start(folder / "site", PILOTS, CPUS)
    (folder / "bin").mkdir()
    for name in ("sbatch", "squeue"):
        wrapper = folder / "bin" / name
        wrapper.write_text(f'#!/bin/sh\necho >> {folder}/{name}.calls\nexec {shutil.which(name)} "$@"\n')
        wrapper.chmod(0o755)
    before = dict(os.environ)
    os.environ.update(SLURM_CONF=str(config), PATH=f"{folder / 'bin'}{os.pathsep}{before['PATH']}")
    try:
        yield folder
    finally:
        slurm_here.stop(folder / "site")
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def calls(folder: Path, name: str) -> int:
    file = folder.parent / f"{name}.calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def fit(folder: Path, trainable: Any, trials: int, engine: Any, **more: Any) -> tune.ResultGrid:
    space = {"lr": tune.loguniform(1e-4, 1e-1)}
    scheduler = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    goal = {"metric": "loss", "mode": "min", "scheduler": scheduler, "num_samples": trials, **more}
    run_config = tune.RunConfig(name="e", storage_path=str(folder), verbose=0, engine=engine)
    random.seed(7)
    tuner = tune.Tuner(
        trainable, param_space=space, tune_config=tune.TuneConfig(**goal), run_config=run_config
    )
    return tuner.fit()


def learn(config: dict[str, Any]) -> None:
    for step in range(1, 10):
        tune.report({"loss": config["lr"] + 1.0 / step})


def measure_decisions(folder: Path, quick: bool) -> dict[str, float]:
    """Run one trial at a time with a seed, here and there: everything decided must be equal."""
    trials = 40 if quick else 200
    seen, before = [], calls(folder, "sbatch")
    for kind in ("local", SlurmConfig(time="30", max_pilots=1)):
        search = tune.search.basic_variant.BasicVariantGenerator(random_state=7)
        grid = fit(folder / str(len(seen)), learn, trials, kind, search_alg=search, max_concurrent_trials=1)
        seen.append([(each.config["lr"], each.metrics["training_iteration"]) for each in grid])
    return {
        "decisions.equal": float(seen[0] == seen[1] and len(seen[0]) == trials),
        "calls.sbatch_per_100_trials": (calls(folder, "sbatch") - before) / trials * 100,
    }


def measure_first(folder: Path, quick: bool) -> dict[str, float]:
    """Measure from the first line of the batch script, which runs when the allocation is granted."""
    took_s = []
    for number in range(1 if quick else 5):
        place = folder / str(number)
        place.mkdir(parents=True)
        setup = [f"date +%s.%N > {place}/granted"]
        with open_there(place, SlurmConfig(time="30", max_pilots=1, setup=setup)) as engine:
            first = next(at for at, _ in reports(engine, place, trials=1, count=1))
        took_s.append(first - float((place / "granted").read_text()))
    return {"first_result_s": sorted(took_s)[len(took_s) // 2]}


def measure_rate(folder: Path, quick: bool) -> dict[str, float]:
    """Compare results per second of sixteen trials, in turns."""
    count = 100 if quick else 500
    rates: dict[str, list[float]] = {"local": [], "slurm": []}
    for turn in range(1 if quick else 3):
        place = folder / str(turn)
        place.mkdir(parents=True)
        config = SlurmConfig(time="30", pilot_cpus=CPUS, max_pilots=PILOTS)
        known = {"busy": cloudpickle.dumps(slurm_driver.busy)}
        local = LocalEngine(clock=SystemClock(), trainables=known, capacity={"CPU": float(PILOTS * CPUS)})
        for name, engine in (("local", local), ("slurm", open_there(place, config))):
            with engine:
                times = [at for at, _ in reports(engine, place / name, trials=16, count=count)]
            rates[name].append(len(times) / (times[-1] - times[0]))
    local_rate, slurm_rate = (sorted(each)[len(each) // 2] for each in rates.values())
    return {
        "results_per_s.local": local_rate,
        "results_per_s.slurm": slurm_rate,
        "rate_ratio": slurm_rate / local_rate,
    }


def open_there(folder: Path, config: SlurmConfig) -> Any:
    return SlurmEngine(
        directory=folder,
        clock=SystemClock(),
        request=HALF,
        trainables={"busy": cloudpickle.dumps(slurm_driver.busy)},
        options=SlurmOptions(config=config),
    )


def reports(engine: Engine, folder: Path, *, trials: int, count: int) -> list[tuple[float, str]]:
    """Run trials that do nothing but report; return when each result came once all of them had started."""
    for number in range(trials):
        name = f"t{number}"
        more = {"trial_dir": str(folder / name), "experiment_name": "e", "config": {"count": count}}
        engine.submit(
            StartTrial(trial_id=name, trial_name=name, trainable_name="busy", resources=HALF, **more)
        )
    found: list[tuple[float, str]] = []
    left, started = trials, set[str]()
    while left:
        for event in engine.poll(1.0):
            if isinstance(event, TrialReported):
                started.add(event.trial_id)
                if len(started) == trials:
                    found.append((time.time(), event.trial_id))
                engine.submit(ContinueTrial(trial_id=event.trial_id))
            left -= isinstance(event, TrialExited)
    return found


def measure_faults(folder: Path, quick: bool, first: int) -> dict[str, float]:
    """Do something to the pilots or to Slurm every few seconds, until the trials are done."""
    most = 7 if quick else FAULTS_OF_RUN
    folder.mkdir(parents=True)
    trials, wire, faults = (10 if quick else 30) * most, SlurmWire(), 0
    driver = slurm_driver.start("fresh", folder, trials)
    while faults < most and driver.poll() is None:
        time.sleep(3.0)
        pilots = [job for job in wire.squeue() if job.is_running and job.comment]
        if not pilots:
            continue
        number = first + faults
        pilot = random.Random(number).choice(pilots)
        driver = slurm_driver.fault(number, pilot, driver, folder, quick=quick)
        faults += 1
    (folder / slurm_driver.HURRY).touch()
    driver.wait()
    time.sleep(2.0)
    while (
        driver.returncode not in (0, None) and (driver := slurm_driver.start("resume", folder, trials)).wait()
    ):
        pass
    ours = [job for job in wire.squeue() if job.comment.startswith("muster:")]
    left = [job for job in ours if not job.has_ended and job.state != "COMPLETING"]
    for job in left:
        table.progress(f"slurm: left: {job}")
    return {
        "faults.made": faults,
        **slurm_driver.outcome(folder, trials),
        "faults.jobs_left": float(len(left)),
    }


if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "bench", "slurm"]))
