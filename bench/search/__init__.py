"""Compare TPESearch with Optuna's default sampler and with random search, problem by problem.

Quality is exact and the same on every machine, up to the last bits of floating point; only speed is measured.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from bench import table
from bench.options import Options

# With half as many seeds, means of single problems with several objectives or curves move by five percent.
SEEDS, GOAL_SEEDS, RUNG_SEEDS, TRIALS = 24, 24, 80, 100
QUICK = ("f1_10d", "f15_5d", "mixed_ml", "nk_cat8", "cash", "zdt1", "rosenbrock4")
MODES = {"sequential": 1, "parallel8": 8}


def run(options: Options) -> dict[str, float]:
    """Play all problems, print the tables, return the figures."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # before numpy is imported
    from bench.search import goals, quality, rungs, speed
    from bench.search.problems import PROBLEMS

    def wants(name: str) -> bool:
        return options.wants(name) and (not options.quick or name in QUICK)

    figures: dict[str, float] = {}
    has_optuna = importlib.util.find_spec("optuna") is not None
    if not has_optuna:
        table.note("Optuna is not installed, so only speed alone is measured: pip install 'muster-ml[bench]'")
        return speed.figures(with_optuna=False)
    problems = {name: problem for name, problem in PROBLEMS.items() if wants(name)}
    seeds = range(4 if options.quick else SEEDS)
    for mode, workers in MODES.items() if problems else ():
        table.progress(f"search: {len(problems)} problems, {mode}")
        found = quality.curves(problems, seeds, workers, TRIALS, ("ours", "optuna", "random"))
        figures |= quality.figures(found, mode)
        show(mode, found)
    table.progress("search: several objectives")
    figures |= goals.figures(2 if options.quick else GOAL_SEEDS, TRIALS, wants)
    table.progress("search: rungs")
    figures |= rungs.figures(4 if options.quick else RUNG_SEEDS, wants)
    if options.wants("speed"):
        figures |= speed.figures(with_optuna=True)
    summarize(figures)
    return figures


def show(mode: str, found: Mapping[str, Mapping[str, object]]) -> None:
    """Print a table of problems, those with the fewest wins first."""
    import numpy as np

    from bench.search.quality import significance, win_rates

    wins, chance = (win_rates(found, other, TRIALS) for other in ("optuna", "random"))  # type: ignore[arg-type]
    rows = []
    for name in sorted(wins, key=wins.__getitem__):
        medians = [f"{float(np.median(found[player][name][:, -1])):.4g}" for player in found]
        p = abs(significance(found, name, TRIALS))  # type: ignore[arg-type]
        rows.append((name, *medians, f"{wins[name]:.2f}", f"{p:.3f}", f"{chance[name]:.2f}"))
    columns = ("problem", "muster", "Optuna", "random", "wins over Optuna", "p", "wins over random")
    table.show(f"search: {mode}, median of the best value after {TRIALS} trials", columns, rows)


def summarize(figures: Mapping[str, float]) -> None:
    prefixes = ("volume_ratio.", "rung_ratio.", "suggest_ms.", "speedup.")
    rows = [(name, f"{value:.3f}") for name, value in figures.items() if name.startswith(prefixes)]
    if rows:
        table.show("search: several objectives, rungs, speed", ("figure", "value"), rows)
