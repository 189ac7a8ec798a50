"""Compare Ray's Reconciler and ours on 10,000 running instances with nothing to do."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from bench import table
from bench.measure import Party, interleave
from bench.options import Options
from bench.ours.reconcile import SteadyCluster
from bench.peer import reconcile as peer
from bench.peer.process import PeerProcess

STEADY = "steady_10000"
HISTORY = "history_100k"
INSTANCES = 10_000
ENDED = 100_000


def run(options: Options) -> dict[str, float]:
    """Measure, print the tables, return the figures."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory, ExitStack() as stack:
        table.progress(f"reconcile: filling a ledger with {INSTANCES} instances")
        fresh = stack.enter_context(closing(SteadyCluster(Path(directory) / "fresh.sqlite", INSTANCES)))
        figures: dict[str, float] = {}
        if options.wants(STEADY):
            figures |= compare(fresh, options)
        if options.wants(HISTORY):
            table.progress(f"reconcile: filling a ledger with {ENDED} terminated records too")
            aged = stack.enter_context(
                closing(SteadyCluster(Path(directory) / "aged.sqlite", INSTANCES, ENDED))
            )
            figures |= compare_histories(fresh, aged, options)
        return figures


def compare(fresh: SteadyCluster, options: Options) -> dict[str, float]:
    """Measure Ray's loop and our tick, turn by turn."""
    table.progress("reconcile: one loop after another")
    runs = 5 if options.quick else 25
    tick = Party("tick", fresh.tick, budget_s=30.0, max_runs=runs)
    alone = Party("reconcile", fresh.reconcile_only, budget_s=30.0, max_runs=runs)
    figures: dict[str, float] = {}
    rows: list[tuple[str, str, str]] = []
    if options.with_peer:
        with closing(PeerProcess()) as process:
            ray = Party(
                "Ray",
                lambda: process.call(peer.reconcile_steady, INSTANCES),
                budget_s=60.0,
                max_runs=1 if options.quick else 5,
            )
            interleave(tick, ray, alone)
        demand_quiet(ray)
        figures[f"speedup.{STEADY}"] = ray.cpu_s / tick.cpu_s
        figures[f"speedup.{STEADY}.reconcile_only"] = ray.cpu_s / alone.cpu_s
        figures[f"peer_seconds.{STEADY}"] = ray.cpu_s
        mark = ">" if ray.over_limit else ""
        rows.append(("Ray 2.60: one loop, in-memory storage", table.seconds(ray.cpu_s, mark), "1"))
    else:
        interleave(tick, alone)
    for party in (tick, alone):
        demand_quiet(party)
    figures |= {f"seconds.{STEADY}": tick.cpu_s, f"seconds.{STEADY}.reconcile_only": alone.cpu_s}
    speedups = [figures.get(f"speedup.{STEADY}{suffix}") for suffix in ("", ".reconcile_only")]
    rows.append(
        ("ours: load, reconcile, commit (SQLite)", table.seconds(tick.cpu_s), table.times(speedups[0]))
    )
    rows.append(("ours: reconcile alone", table.seconds(alone.cpu_s), table.times(speedups[1])))
    table.show(f"reconcile: {INSTANCES} running, nothing to do", ("loop", "CPU s", "speedup"), rows)
    return figures


def compare_histories(fresh: SteadyCluster, aged: SteadyCluster, options: Options) -> dict[str, float]:
    """Measure our tick over a young ledger and over one with a long past; with and without a write."""
    runs = 5 if options.quick else 31
    figures: dict[str, float] = {}
    rows: list[tuple[str, str, str, str]] = []
    for suffix, title, young, old in (
        ("", "a tick with nothing to do", fresh.tick, aged.tick),
        (".with_a_change", "a tick that writes a record", fresh.tick_with_a_change, aged.tick_with_a_change),
        (".restart", "opening the ledger after a restart", fresh.restart, aged.restart),
    ):
        without = Party(f"{title}, young", young, budget_s=60.0, max_runs=runs)
        behind = Party(f"{title}, old", old, budget_s=60.0, max_runs=runs)
        interleave(without, behind)
        demand_quiet(without)
        demand_quiet(behind)
        factor = behind.cpu_s / without.cpu_s
        figures[f"history_factor.100k{suffix}"] = factor
        rows.append((title, table.seconds(without.cpu_s), table.seconds(behind.cpu_s), f"{factor:.3f}"))
    columns = ("ours", "no past, CPU s", f"{ENDED} terminated, CPU s", "factor")
    table.show("reconcile: what the past costs", columns, rows)
    return figures


def demand_quiet(party: Party) -> None:
    """Fail when a loop did something: then it did not run the case it is measured for."""
    if not all(run.value for run in party.runs):
        raise RuntimeError(f"{party.name}: the cluster was steady, yet the loop changed something")
