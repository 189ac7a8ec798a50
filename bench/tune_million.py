"""Run a million simulated trials in one experiment: the cost of a trial and the memory it leaves behind.

Part of `python -m bench tune` (case `million`). Random search and ASHA, as a launch joins them, on the
simulated engine: no process and no file, so what remains is the driver.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any, NamedTuple

from bench import table
from bench.tune_job import resident_bytes
from bench.tune_processes import BenchProcesses

TRIALS, QUICK_TRIALS = 1_000_000, 20_000
RESULTS = 5  # of a trial that ASHA does not stop
CASES = (  # what it does, the end of the figures' names, its grace period
    ("compares after the last result", "", RESULTS),
    ("stops three of four at the first", ".stopping", 1),
)


class SimulatedFit(NamedTuple):
    """What one simulated experiment took."""

    trials: int
    results: int
    cpu_s: float
    peak_bytes: int  # of the process, the interpreter included
    grown_bytes: int


def million(processes: BenchProcesses) -> dict[str, float]:
    """Measure CPU seconds and peak memory of a process that does nothing else, with ASHA in both ways."""
    trials = processes.size(TRIALS, QUICK_TRIALS)
    figures: dict[str, float] = {}
    rows = []
    for title, suffix, grace in CASES:
        table.progress(f"tune: million: {trials:,} simulated trials, {title}")
        processes.renew_ours()
        found: SimulatedFit = processes.ours(simulated_fit, trials, grace)
        figures |= figures_of(found, suffix)
        rows.append(row_of(title, found))
    columns = ("ASHA", "results", "per trial", "CPU s", "us per trial", "peak MB", "bytes per trial")
    table.show(f"tune: {trials:,} simulated trials of {RESULTS} results, random search", columns, rows)
    return figures


def figures_of(found: SimulatedFit, suffix: str) -> dict[str, float]:
    figures = {
        f"simulated.us_per_trial{suffix}": 1e6 * found.cpu_s / found.trials,
        f"simulated.bytes_per_trial{suffix}": found.grown_bytes / found.trials,
        f"simulated.results_per_trial{suffix}": found.results / found.trials,
    }
    if found.trials == TRIALS:
        figures[f"seconds.million_trials{suffix}"] = found.cpu_s
        figures[f"mb.million_trials{suffix}"] = found.peak_bytes / 1e6
    return figures


def row_of(title: str, found: SimulatedFit) -> tuple[str, ...]:
    return (
        title,
        f"{found.results:,}",
        f"{found.results / found.trials:.2f}",
        f"{found.cpu_s:.1f}",
        f"{1e6 * found.cpu_s / found.trials:.0f}",
        f"{found.peak_bytes / 1e6:,.0f}",
        f"{found.grown_bytes / found.trials:,.0f}",
    )


def simulated_fit(trials: int, grace: int) -> SimulatedFit:
    """Run the experiment in this process, and checks that every trial has ended with its result.

    `grace`: the results after which ASHA first compares; with `RESULTS` every trial reports all of them.
    """
    from muster.sim.tune.experiment import SimulatedExperiment
    from muster.tune.schedulers import ASHAScheduler
    from muster.tune.search.space import loguniform, uniform

    def report(config: Any, iteration: int) -> dict[str, float]:
        return {"loss": config["x"] / iteration}

    experiment = SimulatedExperiment(
        curve=report,
        space={"x": uniform(0.0, 1.0), "lr": loguniform(1e-4, 1e-1)},
        metric="loss",
        mode="min",
        num_samples=trials,
        workers=16,
        make_scheduler=lambda: ASHAScheduler(max_t=RESULTS, grace_period=grace, reduction_factor=4),
        max_t=RESULTS,
    )
    before, began = resident_bytes(), time.process_time()
    run = experiment.run()
    spent = time.process_time() - began
    grown, peak = resident_bytes() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = sum(trial.status == "TERMINATED" for trial in run.state.index.order)
    if ended != trials or run.state.index.order[0].last_result["loss"] > 1.0:
        raise RuntimeError(f"{ended} of {trials} trials ended")
    peak_bytes = peak if sys.platform == "darwin" else peak * 1024
    return SimulatedFit(trials, run.history.results, spent, peak_bytes, grown)
