"""Run one experiment with Ray Tune and with ours: the same lines of code, given one module or the other.

Called in the child processes of `bench.ours.tune` and `bench.peer.tune`; imports neither system.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUS = 2  # both sides get so many
METRIC = "score"
GONE_S = 60.0


@dataclass(frozen=True)
class Job:
    """Runs a function that reports `reports` times and does nothing else, `trials` times."""

    trials: int
    reports: int = 1
    reuse: bool = True
    cpus: float = 1.0  # of each trial
    together: bool = False  # none reports before all of them run

    @property
    def results(self) -> int:
        return self.trials * self.reports


@dataclass(frozen=True)
class Phases:
    """Where the time of one `fit()` with trials at once went, in seconds."""

    first: float  # until the first trial's code ran
    last: float  # until the last one's did: from here on all processes run
    results: float  # from then to the last result
    end: float  # from the last result to the end of fit()


@dataclass(frozen=True)
class Fit:
    """What one `fit()` took."""

    job: Job
    directory: str  # of the experiment
    wall_s: float  # of fit(): engine or actors started, trials run, log files closed, results gathered
    since_first_s: float  # the part of it after the first result
    cpu_s: float  # of this process and of the children it has waited for
    rss_bytes: dict[int, int]  # of this process, by the number of finished trials; the last one after fit()
    phases: Phases | None = None  # of trials at once

    @property
    def trials_per_s(self) -> float:
        return self.job.trials / self.wall_s

    @property
    def results_per_s(self) -> float:
        return self.job.results / self.wall_s

    @property
    def results_per_s_since_first(self) -> float:
        return (self.job.results - 1) / self.since_first_s


class Marks:
    """What the callback saw. Not kept in the callback: a Tuner may copy its callbacks."""

    def __init__(self) -> None:
        self.first_result_at = self.last_result_at = 0.0
        self.finished = 0
        self.rss_bytes: dict[int, int] = {}
        self.look_at: frozenset[int] = frozenset()

    def result(self) -> None:
        self.last_result_at = time.perf_counter()
        self.first_result_at = self.first_result_at or self.last_result_at

    def complete(self) -> None:
        self.finished += 1
        if self.finished in self.look_at:
            self.rss_bytes[self.finished] = resident_bytes()


MARKS = Marks()


def watcher(tune: Any) -> Any:
    """Return a callback of either system."""

    class Watcher(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info) -> None:
            MARKS.result()

        def on_trial_complete(self, iteration, trials, trial, **info) -> None:
            MARKS.complete()

    return Watcher()


def trainable(tune: Any, job: Job) -> Any:
    """Return the same function for both sides. What it calls is inside, so that it is pickled with it."""

    def meet(place: str, expected: int) -> None:
        import os
        import time

        open(f"{place}/{os.getpid()}", "wb").close()
        while len(os.listdir(place)) < expected:
            time.sleep(0.02)

    def train(config: dict[str, Any]) -> None:
        if config["meeting"]:
            meet(config["meeting"], config["trials"])
        for step in range(config["reports"]):
            tune.report({METRIC: config["x"] + step})

    return tune.with_resources(train, {"cpu": job.cpus})


def fit(tune: Any, job: Job, storage: str, look_at: tuple[int, ...] = (), **run_options: Any) -> Fit:
    """Run the job with all loggers, silently; an error of any trial is an error here."""
    MARKS.__init__()  # type: ignore[misc]
    MARKS.look_at = frozenset(look_at)
    space = {"x": tune.uniform(0.0, 1.0), "reports": job.reports, "trials": job.trials, "meeting": ""}
    if job.together:
        space["meeting"] = str(Path(storage) / "meeting")
        os.mkdir(space["meeting"])
    cpu_before, started, started_at = cpu_s(), time.perf_counter(), time.time()
    tuner = tune.Tuner(
        trainable(tune, job),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="max", num_samples=job.trials, reuse_actors=job.reuse
        ),
        run_config=tune.RunConfig(
            name="bench", storage_path=storage, verbose=0, callbacks=[watcher(tune)], **run_options
        ),
    )
    grid = tuner.fit()
    ended = time.perf_counter()
    rss_bytes = {**MARKS.rss_bytes, job.trials: resident_bytes()}
    check_results(grid, job)
    directory = str(Path(storage) / "bench")
    check_logs(directory, job)
    since_first_s, used_s = ended - MARKS.first_result_at, cpu_s() - cpu_before
    phases = None
    if job.together:
        first, last = arrivals(space["meeting"], started_at)
        results = MARKS.last_result_at - started - last
        phases = Phases(first, last, results, ended - MARKS.last_result_at)
        wait_until_gone([int(name) for name in os.listdir(space["meeting"])])
    return Fit(job, directory, ended - started, since_first_s, used_s, rss_bytes, phases)


def arrivals(meeting: str, since: float) -> tuple[float, float]:
    """Return when the first and the last trial came to the meeting, in seconds since that time."""
    came = [entry.stat().st_mtime - since for entry in os.scandir(meeting)]
    return min(came), max(came)


def wait_until_gone(pids: list[int]) -> None:
    """Wait for the end of these processes: the CPU that it takes is not the next turn's."""
    give_up = time.monotonic() + GONE_S
    while any(_lives(pid) for pid in pids) and time.monotonic() < give_up:
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def restore(tune: Any, job: Job, directory: str, then: str) -> float:
    """Return seconds from the path of a finished experiment to all results; `then`: get_results or fit."""
    started = time.perf_counter()
    tuner = tune.Tuner.restore(directory, trainable=trainable(tune, job))
    check_results(getattr(tuner, then)(), job)  # timed too: results may be read when they are looked at
    return time.perf_counter() - started


def check_results(grid: Any, job: Job) -> None:
    """Check the results: a fast wrong answer is worth nothing."""
    if grid.errors:
        raise RuntimeError(f"{len(grid.errors)} of {job.trials} trials failed: {grid.errors[0]}")
    seen = [result.metrics["training_iteration"] for result in grid if METRIC in result.metrics]
    if seen != [job.reports] * job.trials:
        raise RuntimeError(f"asked for {job.trials} x {job.reports} results, got {len(seen)}: {seen[:3]}...")


def check_logs(directory: str, job: Job) -> None:
    """Check that all three loggers have written to the last line by the time fit() returns."""
    place = next(entry for entry in Path(directory).iterdir() if entry.is_dir())
    lines = [len((place / name).read_bytes().splitlines()) for name in ("result.json", "progress.csv")]
    if lines != [job.reports, job.reports + 1] or not list(place.glob("events.out.tfevents.*")):
        raise RuntimeError(f"{place}: lines of result.json and progress.csv are {lines}; loggers were not on")


def state_bytes(directory: str) -> int:
    """Return what the system keeps about the experiment beside the directories of its trials."""
    return sum(entry.stat().st_size for entry in Path(directory).iterdir() if entry.is_file())


def cpu_s() -> float:
    """Return CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def resident_bytes() -> int:
    """Return the memory of this process; the maximum where the system does not report the current one."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


def settle(environment: dict[str, str]) -> None:
    """Prepare this process for one side: two processors, nothing printed, this environment."""
    os.environ.update(environment)
    sys.dont_write_bytecode = False  # it came with the start method; see bench.tune_processes.bytecode_cache
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def timed(function: Callable[[], Any]) -> float:
    """Return wall seconds."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
