"""Compare what experiments cost with ours and with a peer without prices and forecasts, in virtual time.

Both sides are the same simulator, tuner and autoscaler; the peer is ours with every switch off. Costs, times
and values are exact and the same on every machine; nothing here depends on how fast it runs, except `quote`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean, median

from bench import economy_budget, economy_deadline, table
from bench.economy_scenario import PEER, Scenario, Switches
from bench.options import Options
from muster.sim.joint.run import JointResult

STARTS, QUICK_STARTS = 30, 2
SHARE_STARTS = 5  # of the runs with one feature off, and of those with a limit of nodes
LIMIT = 64  # nodes, where their number is limited
WORKLOADS = ("asha", "hyperband", "pbt")
OURS = Switches()
ON_DEMAND = replace(OURS, spot=False)
SIDES = {
    "peer": PEER,
    "peer, types by price": replace(PEER, price_aware=True),
    "ours, on demand": ON_DEMAND,
    "ours, with spot": OURS,
}
WITHOUT = {
    "types by price": "price_aware",
    "removing at once": "removes",
    "buying ahead": "buys_ahead",
    "not too late": "not_too_late",
    "consolidation": "consolidates",
}
Runs = dict[str, list[JointResult]]  # side -> one result per start


def run(options: Options) -> dict[str, float]:
    """Run, print the tables, return the figures."""
    starts = QUICK_STARTS if options.quick else STARTS
    scenario = Scenario()
    figures: dict[str, float] = {}
    lost: list[float] = []
    for workload in filter(options.wants, WORKLOADS):
        found = run_all(scenario, workload, SIDES, starts)
        show(f"{workload}, {starts} starts", found)
        figures |= ratios(workload, found, scenario.value_range()) | ceilings(scenario, workload, found)
        lost += [one.lost_share for one in found["ours, with spot"]]
        figures |= shares(scenario, workload, found, min(starts, SHARE_STARTS))
        figures |= limited(workload, min(starts, SHARE_STARTS))
    if lost:
        figures["lost_work.median"], figures["lost_work.worst"] = median(lost), max(lost)
        table.note(f"work repeated on spot: median {median(lost):.2%}, worst start {max(lost):.2%}")
    if options.wants("mixed"):
        figures |= consolidation(scenario, starts)
    if options.wants("budget"):
        figures |= economy_budget.run(quick=options.quick)
    if options.wants("deadline"):
        figures |= economy_deadline.run(quick=options.quick)
    if options.wants("quote") and options.with_peer:
        from bench.economy_quote import quotes  # a real cluster: it needs Ray

        figures |= quotes(quick=options.quick)
    return figures


def run_all(scenario: Scenario, workload: str, sides: Mapping[str, Switches], starts: int) -> Runs:
    """Run every start of every side, on all processors: nothing depends on what runs beside it."""
    jobs = [
        (scenario, workload, switches, seed) for switches in sides.values() for seed in range(1, starts + 1)
    ]
    with ProcessPoolExecutor(initializer=_quiet) as pool:
        results = []
        for done, one in enumerate(pool.map(_run_start, jobs), 1):
            results.append(one)
            table.progress(f"{workload}: {done} of {len(jobs)} runs")
    return {name: results[i * starts : (i + 1) * starts] for i, name in enumerate(sides)}


def _quiet() -> None:
    logging.getLogger("muster").setLevel(logging.ERROR)


def _run_start(job: tuple[Scenario, str, Switches, int]) -> JointResult:
    scenario, workload, switches, seed = job
    return scenario.run(workload, switches, seed)


def ratio(ours: Sequence[JointResult], peer: Sequence[JointResult]) -> float:
    """Return the median over starts of the peer's cost / ours."""
    return median(b.cost / a.cost for a, b in zip(ours, peer, strict=False))


def time_ratio(ours: Sequence[JointResult], peer: Sequence[JointResult]) -> float:
    return median(a.end_s / b.end_s for a, b in zip(ours, peer, strict=False))


def ratios(workload: str, found: Runs, value_range: float) -> dict[str, float]:
    """Return the figures of one workload; a best value is the lower the better."""
    peer, priced = found["peer"], found["peer, types by price"]
    figures = {}
    for side, name in (("ours, on demand", "ondemand"), ("ours, with spot", "spot")):
        ours = found[side]
        figures[f"cost_ratio.{workload}_{name}"] = ratio(ours, peer)
        figures[f"cost_ratio_same_types.{workload}_{name}"] = ratio(ours, priced)
        figures[f"time_ratio.{workload}_{name}"] = time_ratio(ours, peer)
        figures[f"best_gap.{workload}_{name}"] = (best(ours) - best(peer)) / value_range
    return figures


def best(runs: Iterable[JointResult]) -> float:
    return fmean(value for one in runs for value in one.best.values())


def shares(scenario: Scenario, workload: str, found: Runs, starts: int) -> dict[str, float]:
    """Turn one feature off at a time: how much more it costs then is that feature's share."""
    ours, figures, rows = found["ours, with spot"][:starts], {}, []
    off = {f"without {text}": replace(OURS, **{name: False}) for text, name in WITHOUT.items()}
    off["without spot"] = ON_DEMAND
    for name, runs in run_all(scenario, workload, off, starts).items():
        more = median(b.cost / a.cost for a, b in zip(ours, runs, strict=False))
        figures[f"cost_without.{workload}_{name.removeprefix('without ').replace(' ', '_')}"] = more
        rows.append([name, f"{more:.2f}x", f"{time_ratio(runs, ours):.2f}x"])
    table.show(f"{workload}: what each feature is worth, {starts} starts", ["", "cost", "time"], rows)
    return figures


def limited(workload: str, starts: int) -> dict[str, float]:
    """Repeat the comparison with a limit of nodes: the peer cannot buy one per trial then."""
    found = run_all(Scenario(most_nodes=LIMIT), workload, SIDES, starts)
    show(f"{workload}, at most {LIMIT} nodes, {starts} starts", found)
    return {
        f"cost_ratio_{LIMIT}_nodes.{workload}_{name}": ratio(found[side], found["peer"])
        for side, name in (("ours, on demand", "ondemand"), ("ours, with spot", "spot"))
    }


def ceilings(scenario: Scenario, workload: str, found: Runs) -> dict[str, float]:
    """Return what no ratio can exceed: the same trials at the best price, no boot, nothing idle or taken."""
    figures = {}
    for name, switches in (("ondemand", ON_DEMAND), ("spot", OURS)):
        price, head = scenario.best_price(switches), scenario.head_price()
        ideal = [one.busy_s / 3600 * price + one.end_s / 3600 * head for one in found["peer"]]
        figures[f"ceiling.{workload}_{name}"] = median(
            one.cost / cost for one, cost in zip(found["peer"], ideal, strict=True)
        )
    table.note(
        f"{workload}: no ratio can exceed {' and '.join(f'{v:.2f} ({k})' for k, v in figures.items())}"
    )
    return figures


def consolidation(scenario: Scenario, starts: int) -> dict[str, float]:
    """Run the mixed workload on demand with and without consolidation: other moves there are not."""
    sides = {"consolidation off": replace(ON_DEMAND, consolidates=False), "conservative": ON_DEMAND}
    found = run_all(scenario, "mixed", sides, starts)
    show(f"mixed workload, on demand, {starts} starts", {"peer": found["consolidation off"], **found})
    off, on = found.values()
    return {
        "consolidation_saved": median(1.0 - b.cost / a.cost for a, b in zip(off, on, strict=True)),
        "consolidation_lost": max(one.lost_share for one in on),
        "moved_more_than_twice": float(sum(count > 2 for one in on for count in one.moves)),
    }


def show(title: str, found: Runs) -> None:
    rows = []
    for name, runs in found.items():
        rows.append(
            [
                name,
                f"{median(one.cost for one in runs):.2f}",
                f"{median(one.end_s for one in runs) / 3600:.2f}",
                f"{median(one.node_s for one in runs) / 3600:.1f}",
                f"{median(one.busy_s / one.node_s for one in runs):.0%}",
                f"{median(one.machines for one in runs):.0f}",
                f"{median(one.lost_share for one in runs):.2%}",
                f"{best(runs):.4f}",
                f"{ratio(runs, found['peer']):.2f}x",
                f"{time_ratio(runs, found['peer']):.2f}x",
            ]
        )
    columns = ["", "$", "hours", "node-hours", "in use", "machines", "repeated", "best value"]
    table.show(f"{title}: medians", [*columns, "peer's $ / its", "its time / peer's"], rows)
