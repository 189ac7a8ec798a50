"""Compare every scheduler and searcher on ten problems in virtual time, beside Ray Tune's.

Virtual hours and node-hours are exact and the same on every machine; only `decisions_per_s` is measured.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import schedulers_large, schedulers_plot, schedulers_scale, schedulers_summary, table
from bench.options import Options
from bench.schedulers_run import SAMPLES, WORKERS, Entry, SchedulerRun, run_candidate
from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings, NotInstalled, make_searcher
from muster.sim.tune.problems import PROBLEMS
from muster.tune.search.space import uniform

SEEDS, COSTLY_SEEDS = 20, 3
COSTLY = {"pb2"}  # a Gaussian process per decision: fewer seeds
WITH_OPTUNA = ("fifo", "asha", "asha_promotion", "hyperband", "bohb", "median")
QUICK = ("power_law", "crossing", "branin", "conditional")
Board = dict[str, dict[str, list[SchedulerRun]]]  # problem -> candidate -> one run per seed


def run(options: Options) -> dict[str, float]:
    """Run, draw, print the tables, return the figures."""
    live = 10_000 if options.quick else 50_000
    figures = {
        "decisions_per_s.asha": decisions_per_s(live),
        "decisions_per_s.asha_promotion": decisions_per_s(live, type="promotion"),
    }
    if options.wants("large"):
        figures |= schedulers_large.large(options.quick)
    if options.wants("scale"):
        figures |= schedulers_scale.scale(options.quick, [name for name in SCHEDULERS if _is_there(name)])
    entries = candidates(options.with_peer)
    problems = [name for name in (QUICK if options.quick else PROBLEMS) if options.wants(name)]
    board = run_all(problems, entries, 3 if options.quick else SEEDS, 32 if options.quick else SAMPLES)
    for problem, found in board.items():
        figures |= figures_of(problem, found)
        show(problem, found)
    figures |= schedulers_summary.summary(board)
    if board and importlib.util.find_spec("matplotlib"):
        path = Path(tempfile.gettempdir()) / "muster-bench-schedulers.png"
        schedulers_plot.draw(board, {name: PROBLEMS[name].optimum for name in board}, path)
        table.note(f"plot: {path}")
    elif board:
        table.note("no plot: matplotlib is not installed (pip install 'muster-ml[plot]')")
    rate = figures["decisions_per_s.asha"]
    table.note(f"ASHA: {rate:,.0f} decisions per CPU second, the scheduler alone, {live:,} live trials")
    return figures


def candidates(with_peer: bool) -> list[Entry]:
    """Return those that exist here; the others are named with the reason."""
    found = [Entry(name) for name in SCHEDULERS if _is_there(name)]
    try:
        make_searcher("optuna", 0)
        found += [Entry(one.scheduler, "optuna") for one in found if one.scheduler in WITH_OPTUNA]
    except NotInstalled as missing:
        table.note(f"left out: {missing}")
    if with_peer:
        from bench.peer import schedulers

        found += [Entry(name, is_ray=True) for name in schedulers.NAMES]
    return found


def _is_there(name: str) -> bool:
    try:
        SCHEDULERS[name].make(CandidateSettings(space={"x": uniform(0.0, 1.0)}))
    except (NotInstalled, RuntimeError) as missing:
        table.note(f"left out: {missing}")
        return False
    return True


def run_all(problems: Iterable[str], entries: Iterable[Entry], seeds: int, samples: int) -> Board:
    """Run all of them, over as many processes as there are processors."""
    board: Board = {}
    entries = list(entries)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for problem in problems:
            table.progress(f"schedulers: {problem}")
            jobs = {
                entry.name: [
                    pool.submit(run_candidate, problem, entry, seed, samples)
                    for seed in range(min(seeds, COSTLY_SEEDS) if entry.scheduler in COSTLY else seeds)
                ]
                for entry in entries
            }
            board[problem] = {name: [job.result() for job in waiting] for name, waiting in jobs.items()}
    return board


def figures_of(problem: str, found: Mapping[str, list[SchedulerRun]]) -> dict[str, float]:
    """Return what the plot shows: the regret at shares of FIFO's time and node-hours, and at the end."""
    optimum = PROBLEMS[problem].optimum
    ends = {axis: schedulers_plot.span(found["fifo"], axis) for axis in schedulers_plot.AXES}
    figures: dict[str, float] = {}
    for name, runs in found.items():
        for axis, end in ends.items():
            for percent in (5, 25, 100):
                median = schedulers_plot.quantiles(runs, axis, end * percent / 100)[1]
                figures[f"regret.{problem}.{name}.{axis}_{percent}pct"] = median - optimum
        low, _, high = schedulers_plot.quantiles(runs, "hours", math.inf)
        figures[f"regret.{problem}.{name}.q1"] = low - optimum
        figures[f"regret.{problem}.{name}.q3"] = high - optimum
        figures[f"end_h.{problem}.{name}"] = statistics.median(one.end_h for one in runs)
        figures[f"node_h.{problem}.{name}"] = statistics.median(one.used_node_h for one in runs)
    return figures


def show(problem: str, found: Mapping[str, list[SchedulerRun]]) -> None:
    optimum = PROBLEMS[problem].optimum
    target = schedulers_plot.quantiles(found["fifo"], "hours", math.inf)[2]
    rows = []
    for name, runs in found.items():
        low, median, high = schedulers_plot.quantiles(runs, "hours", math.inf)
        rows.append(
            (
                name,
                f"{median - optimum:.4f}",
                f"{low - optimum:.4f} .. {high - optimum:.4f}",
                _hours(statistics.median(one.reach("hours", target) for one in runs)),
                _hours(statistics.median(one.reach("node_hours", target) for one in runs)),
                f"{statistics.median(one.end_h for one in runs):.2f}",
                f"{statistics.median(one.used_node_h for one in runs):.1f}",
            )
        )
    columns = ("", "regret", "quartiles", "h to FIFO's q3", "node-h to it", "end, h", "node-h in all")
    about = PROBLEMS[problem].about
    table.show(f"{problem}: {about} ({len(found['fifo'])} seeds, {WORKERS} workers)", columns, rows)


def _hours(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def decisions_per_s(live: int, **more: str) -> float:
    """Measure `on_trial_result` of ASHAScheduler alone, per CPU second; every result is on a rung."""
    from muster.trials.model import Trial
    from muster.tune.schedulers import ASHAScheduler

    asha = ASHAScheduler(metric="loss", mode="min", max_t=81, reduction_factor=3, **more)
    trials = [Trial("f", trial_id=f"t{number}") for number in range(live)]
    for trial in trials:
        asha.on_trial_add(None, trial)
    fed = [
        (trial, {"training_iteration": rung, "loss": (number * 7919 % 10_007) / 10_007})
        for rung in (1, 3, 9, 27)
        for number, trial in enumerate(trials)
    ]
    began = time.process_time()
    for trial, result in fed:
        asha.on_trial_result(None, trial, result)
    return len(fed) / (time.process_time() - began)
