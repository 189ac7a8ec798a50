"""Compare Ray Tune 2.60 and ours on one and the same Ray cluster, in turns, loggers on.

Each side is a driver process of its own, connected before anything is measured. The head's CPUs are those of
the machine's first two processors; both sides ask for the same shares of them.
"""

from __future__ import annotations

from typing import Any

from bench import peer as peers
from bench import table
from bench.options import Options
from bench.ours import tune_ray as ours
from bench.peer import tune_ray as peer
from bench.tune import rate_figures
from bench.tune_job import CPUS, Fit, Job
from bench.tune_processes import BenchProcesses, Side, in_turns
from bench.tune_ray_cluster import open_cluster

RATES = ("experiment", "Ray Tune /s", "ours /s", "ours / Ray")
RESULTS = (*RATES, "since the first: Ray Tune /s", "ours /s", "ours / Ray")
PHASES = ("first", "last", "results", "end")
WHERE = ("seconds", "to the first process", "to the last", "results", "end", "fit()", "beside Ray's start")
COSTS = ("driver CPU s per 1,000 results", "Ray Tune", "ours", "Ray / ours")


class ClusterBenchProcesses(BenchProcesses):
    """Has two sides that are drivers of one cluster."""

    _stop_ray = staticmethod(peer.stop)

    def __init__(self, options: Options, environment: dict[str, str]) -> None:
        super().__init__(options)
        self._start_ours = (ours.start, environment)
        self._start_ray = (peer.start, environment)


def run(options: Options) -> dict[str, float]:
    """Measure, print the tables, return the figures."""
    if not peers.installed():
        table.note("tune-ray needs Ray on both sides: pip install 'muster-ml[bench]'")
        return {}
    figures: dict[str, float] = {}
    table.progress("tune-ray: starting a cluster")
    with open_cluster(CPUS) as environment, ClusterBenchProcesses(options, environment) as processes:
        for name, case in CASES.items():
            if options.wants(name):
                figures |= case(processes)
    return figures


def compare(
    processes: BenchProcesses, name: str, mine: tuple[Job, int], theirs: tuple[Job, int]
) -> tuple[Side, Side, Side]:
    """Run both sides on a job each, as often as given; for trials at once, Ray with as many empty actors."""
    (my_job, my_repeats), (their_job, their_repeats) = mine, theirs
    us = Side("ours", lambda: processes.ours(ours.fit, my_job, processes.storage()), my_repeats)
    them = Side("Ray Tune", lambda: processes.ray(peer.fit, their_job, processes.storage()), their_repeats)
    alone = Side("Ray alone", lambda: processes.ours(ours.empty_actors, my_job), my_repeats)
    processes.ours(ours.fit, Job(trials=2), processes.storage())
    sides = [us, *([them] if processes.with_ray else []), *([alone] if my_job.together else [])]
    in_turns(f"on Ray: {name}", *sides)
    return us, them, alone


def row(title: str, figure: str, name: str, figures: dict[str, float]) -> tuple[str, ...]:
    """Return a row; `name` may be one of `<name>.since_first`, too."""
    theirs = figures.get(f"peer_{figure}_per_s.{name}")
    return (
        title,
        "-" if theirs is None else f"{theirs:,.1f}",
        f"{figures[f'{figure}_per_s.{name}']:,.1f}",
        table.times(figures.get(f"{figure}_speedup.{name}")),
    )


def trials(processes: BenchProcesses) -> dict[str, float]:
    """Measure trivial trials, one report each, actors used again."""
    mine, theirs = Job(processes.size(2000, 400)), Job(processes.size(300, 40))
    us, them, _ = compare(processes, "trials", (mine, processes.size(5, 3)), (theirs, processes.size(3, 1)))
    figures = rate_figures("trials", "reuse", us, them)
    title = f"{mine.trials} trials (Ray: {theirs.trials}), reuse_actors=True"
    table.show("tune-ray: trivial trials", RATES, [row(title, "trials", "reuse", figures)])
    return figures


def results(processes: BenchProcesses) -> dict[str, float]:
    """Measure reports of one trial and of sixteen at once; what they cost the driver."""
    jobs: dict[str, tuple[str, Job]] = {
        "one": ("one trial", Job(trials=1, reports=processes.size(10_000, 2000))),
        "sixteen": (
            "16 trials at once",
            Job(trials=16, reports=processes.size(1000, 250), cpus=0.125, together=True),
        ),
    }
    figures: dict[str, float] = {}
    rates: list[tuple[str, ...]] = []
    costs: list[tuple[str, ...]] = []
    for name, (title, job) in jobs.items():
        us, them, alone = compare(
            processes, f"results, {title}", (job, processes.size(5, 3)), (job, processes.size(3, 1))
        )
        figures |= rate_figures("results", name, us, them) | cost_figures(name, us, them)
        if job.together:
            figures |= phase_figures(name, us, them, alone)
        title_row = row(f"{title}, {job.reports} reports each", "results", name, figures)
        rates.append((*title_row, *row("", "results", f"{name}.since_first", figures)[1:]))
        costs.append(
            (
                title,
                table.seconds(figures.get(f"peer_driver_cpu_s_per_1000.{name}")),
                table.seconds(figures[f"driver_cpu_s_per_1000.{name}"]),
                table.times(figures.get(f"driver_cpu_ratio.{name}")),
            )
        )
    table.show("tune-ray: results, loggers on", RESULTS, rates)
    show_phases("sixteen", figures)
    table.show("tune-ray: what a result costs the driver", COSTS, costs)
    return figures


def phase_figures(
    name: str, us: Side[Fit], them: Side[Fit], alone: Side[tuple[float, float]]
) -> dict[str, float]:
    """Return where the time of both goes, and the time that Ray needs to start as many empty actors."""
    figures = {
        f"seconds.empty_actors.{phase}": alone.median(lambda s, i=i: s[i])
        for i, phase in enumerate(PHASES[:2])
    }
    for side, prefix in ((us, ""), (them, "peer_")):
        if side.runs:
            for phase in PHASES:
                figures[f"{prefix}seconds.{name}.{phase}"] = side.median(
                    lambda fit, of=phase: getattr(fit.phases, of)
                )
            figures[f"{prefix}seconds.{name}.fit"] = side.median(lambda fit: fit.wall_s)
    return figures


def show_phases(name: str, figures: dict[str, float]) -> None:
    """Print where the time goes; what Ray takes to start empty actors is in every fit()."""
    start = figures["seconds.empty_actors.last"]
    rows = [
        (
            "Ray alone: empty actors",
            *(table.seconds(figures[f"seconds.empty_actors.{p}"]) for p in PHASES[:2]),
            *"----",
        )
    ]
    for title, prefix in (("Ray Tune", "peer_"), ("ours", "")):
        if f"{prefix}seconds.{name}.fit" in figures:
            whole = figures[f"{prefix}seconds.{name}.fit"]
            each = [figures[f"{prefix}seconds.{name}.{phase}"] for phase in PHASES]
            rows.append((title, *map(table.seconds, [*each, whole, whole - start])))
    table.show("tune-ray: where the time of 16 trials at once goes", WHERE, rows)


def cost_figures(name: str, us: Side[Fit], them: Side[Fit]) -> dict[str, float]:
    """Return user and system time of the driver and the processes it started, per 1,000 results."""

    def cost(fit: Fit) -> float:
        return 1000 * fit.cpu_s / fit.job.results

    figures = {f"driver_cpu_s_per_1000.{name}": us.median(cost)}
    if them.runs:
        figures[f"peer_driver_cpu_s_per_1000.{name}"] = them.median(cost)
        figures[f"driver_cpu_ratio.{name}"] = them.median(cost) / us.median(cost)
    return figures


CASES: dict[str, Any] = {"trials": trials, "results": results}
