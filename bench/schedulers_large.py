"""Run one large simulated experiment per scheduler: does a result cost more when there are many trials?

Part of `python -m bench schedulers`. CPU seconds of everything: controller, searcher, scheduler, engine.
"""

from __future__ import annotations

import time

from bench import table
from bench.schedulers_run import COSTS
from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS

NAMES = ("asha", "asha_promotion", "hyperband", "median")
WORKERS = 64
TRIALS, QUICK_TRIALS, FEW_TRIALS = 100_000, 5_000, 1_000


def large(quick: bool) -> dict[str, float]:
    """Return CPU seconds of the large experiment, and the cost of a result there over a small one."""
    trials = QUICK_TRIALS if quick else TRIALS
    figures: dict[str, float] = {}
    rows = []
    for name in NAMES[:2] if quick else NAMES:
        table.progress(f"schedulers: {name} with {trials:,} trials")
        small, few = experiment(name, FEW_TRIALS)
        spent, results = experiment(name, trials)
        growth = (spent / results) / (small / few)
        figures |= {f"large_cpu_s.{name}": spent, f"large_growth.{name}": growth}
        rows.append((name, f"{spent:.1f}", f"{results:,}", f"{1e6 * spent / results:.0f}", f"{growth:.2f}"))
    columns = ("", "CPU s", "results", "CPU us a result", f"over {FEW_TRIALS:,} trials")
    table.show(f"{trials:,} trials in one experiment ({WORKERS} workers)", columns, rows)
    return figures


def experiment(name: str, trials: int) -> tuple[float, int]:
    """Return CPU seconds and the number of results."""
    problem = PROBLEMS["power_law"]
    settings = CandidateSettings(max_t=problem.max_t, seed=1, space=problem.space())
    asked = SimulatedExperiment(
        curve=problem.curve(1),
        space=problem.space(),
        metric=problem.metric,
        mode=problem.mode,
        num_samples=trials,
        workers=WORKERS,
        make_scheduler=lambda: SCHEDULERS[name].make(settings),
        max_t=problem.max_t,
        costs=COSTS,
        seed=1,
        ahead=WORKERS,
    )
    began = time.process_time()
    simulated = asked.run()
    spent = time.process_time() - began
    if len(simulated.state.trials) != trials or not simulated.state.is_finished:
        raise RuntimeError(f"{name}: {len(simulated.state.trials)} of {trials} trials")
    return spent, simulated.history.results
