"""Measure idle CPUs of `bench slurm`: muster's pilots, and submitit with Optuna's journal in batches.

Both run the same learning rates with the same sleeps and the same halving rule, on all CPUs of the site.
submitit submits a batch as a job array with one trial per job, as Hydra's launcher does, and waits for it.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import slurm_driver
from muster import tune
from muster.errors import EngineError
from muster.slurm.wire import SlurmWire
from muster.tune.schedulers import ASHAScheduler

STUDY = "e"
LOOK_S = 2.0


def measure(folder: Path, *, trials: int, cpus: int, with_peer: bool) -> dict[str, float]:
    """Return the shares of CPU seconds in which no trial trained, of those allocated and of all."""
    draw = random.Random(7)
    rates = [10 ** draw.uniform(-4, -1) for _ in range(trials)]
    sides: dict[str, Callable[[Path, list[float], int], float]] = {"": run_ours}
    if with_peer and importlib.util.find_spec("submitit") is not None:
        sides[".submitit"] = run_submitit
    figures: dict[str, float] = {}
    for side, run in sides.items():
        place = folder / (side.strip(".") or "ours")
        place.mkdir(parents=True)
        looks_before = looks(folder)
        busy_s, wall_s, allocated_s, own_looks = watched(lambda run=run, place=place: run(place, rates, cpus))
        figures |= {
            f"calls.squeue_per_s{side}": (looks(folder) - looks_before - own_looks) / wall_s,
            f"idle_share{side}": 1.0 - busy_s / allocated_s,
            f"idle_share_of_site{side}": 1.0 - busy_s / (wall_s * cpus),
            f"allocated_cpu_s{side}": allocated_s,
            f"trained_s{side}": busy_s,
            f"wall_s{side}": wall_s,
        }
    return figures


def looks(folder: Path) -> int:
    """Return how often `squeue` was called, by the scripts in front of Slurm's commands."""
    file = folder.parent / "squeue.calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def watched(run: Callable[[], float]) -> tuple[float, float, float, int]:
    """Return what `run` returns, how long it took, CPU seconds of its jobs, and `squeue` calls made here."""
    wire = SlurmWire()
    earlier, used, ended = {job.job_id for job in wire.squeue()}, dict[str, float](), threading.Event()
    own_looks = 1

    def watch() -> None:
        nonlocal own_looks
        while not ended.wait(LOOK_S):
            own_looks += 1
            with suppress(EngineError):  # a busy controller
                used.update({job.job_id: job.used_s for job in wire.squeue()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    busy_s = run()
    wall_s = time.monotonic() - began
    time.sleep(2 * LOOK_S)
    ended.set()
    watcher.join()
    allocated_s = sum(seconds for job_id, seconds in used.items() if job_id not in earlier)
    return busy_s, wall_s, allocated_s, own_looks


def run_ours(folder: Path, rates: list[float], cpus: int) -> float:
    """Run the trials in pilots of one CPU; return the seconds in which they trained."""
    scheduler = ASHAScheduler(
        max_t=slurm_driver.LEARN_STEPS, grace_period=1, reduction_factor=slurm_driver.FACTOR
    )
    grid = tune.Tuner(
        slurm_driver.sleep_and_learn,
        param_space={"lr": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(
            name=STUDY,
            storage_path=str(folder),
            verbose=0,
            engine=tune.SlurmConfig(time="30", max_pilots=cpus),
        ),
    ).fit()
    return sum(each.metrics["time_total_s"] for each in grid)


def run_submitit(folder: Path, rates: list[float], cpus: int) -> float:
    """Run the same trials in batches of one job per CPU."""
    import submitit

    logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns of each `sacct`, which this site lacks
    journal = folder / "journal.log"
    study = open_study(journal)
    for rate in rates:
        study.enqueue_trial({"lr": rate})
    executor = submitit.SlurmExecutor(folder=folder / "jobs")
    executor.update_parameters(time=30, cpus_per_task=1, array_parallelism=cpus)
    trained_s = 0.0
    for start in range(0, len(rates), cpus):
        with executor.batch():
            jobs = [executor.submit(run_one, journal) for _ in rates[start : start + cpus]]
        trained_s += sum(job.result() for job in jobs)
    return trained_s


def open_study(journal: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=slurm_driver.FACTOR)
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(study_name=STUDY, storage=storage, pruner=pruner, load_if_exists=True)


def run_one(journal: Path) -> float:
    """Run one trial in a job of submitit; return the seconds in which it trained."""
    seconds: list[float] = []
    open_study(journal).optimize(lambda trial: objective(trial, seconds), n_trials=1)
    return sum(seconds)


def objective(trial: Any, seconds: list[float]) -> float:
    """Do what `sleep_and_learn` does, until Optuna prunes the trial."""
    import optuna

    began, rate = time.monotonic(), trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    try:
        for step, loss in slurm_driver.learning(rate):
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss
    finally:
        seconds.append(time.monotonic() - began)
