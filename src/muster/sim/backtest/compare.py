"""Run every variant from several starts, in several processes, and sums up what they came to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from statistics import median

from msgspec import Struct

from muster.sim.backtest.recording import Recording, read_recording
from muster.sim.backtest.replay import Replay, ReplayResult, Variant, percentile, tick_of
from muster.sim.cluster.world import quiet


class Spread(Struct, frozen=True):
    """A figure over several starts."""

    median: float
    low: float
    high: float


class RecordedFigures(Struct, frozen=True, kw_only=True):
    """What the history itself says."""

    cost: float
    node_hours: float
    wait_p50_s: float
    wait_p95_s: float
    interruptions: int
    machines: int


class VariantSummary(Struct, frozen=True, kw_only=True):
    """One variant over all starts; times are in seconds, `done` is a share."""

    name: str
    starts: int
    cost: Spread
    late_cost: Spread
    late_s: Spread
    done: Spread
    node_hours: Spread
    wait_p50_s: Spread
    wait_p95_s: Spread
    interruptions: Spread
    machines: Spread
    unfinished: int
    spend: tuple[tuple[float, float], ...] = ()  # of the first start: seconds, $


class BacktestReport(Struct, frozen=True, kw_only=True):
    """Everything that `muster backtest` shows."""

    trace: str
    cluster: str
    since: float
    until: float
    tick_s: float
    recorded: RecordedFigures
    variants: tuple[VariantSummary, ...]
    provenance: tuple[tuple[str, str], ...]  # "observed", "inferred" or "not known", and what


Task = tuple[Path, Variant, int, float | None]


def backtest(
    place: Path,
    variants: Sequence[Variant],
    *,
    starts: int,
    jobs: int,
    tick_s: float | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> BacktestReport:
    """Replay the history at `place` under each variant; `on_done` is called after each replay."""
    quiet()
    recording = _recording(place)
    tasks = [(place, variant, start, tick_s) for variant in variants for start in range(starts)]
    results: list[ReplayResult] = []
    for result in _run_all(tasks, jobs):
        results.append(result)
        on_done()
    summaries = (
        summary(variant.name, results[at * starts : (at + 1) * starts]) for at, variant in enumerate(variants)
    )
    waits = recording.work.waits_s()
    return BacktestReport(
        trace=str(place),
        cluster=recording.cluster,
        since=recording.since,
        until=recording.until,
        tick_s=tick_s or tick_of(recording),
        recorded=RecordedFigures(
            cost=recording.cost,
            node_hours=recording.node_hours,
            wait_p50_s=percentile(waits, 0.5),
            wait_p95_s=percentile(waits, 0.95),
            interruptions=recording.work.interruptions,
            machines=recording.machines_launched,
        ),
        variants=tuple(summaries),
        provenance=tuple(recording.provenance()),
    )


_SPREAD = [name for name, kind in VariantSummary.__annotations__.items() if kind == "Spread"]


def summary(name: str, results: Sequence[ReplayResult]) -> VariantSummary:
    """Return the spread of each figure."""
    spreads = {}
    for figure in _SPREAD:
        values = [round(float(getattr(result, figure)), 4) for result in results]
        spreads[figure] = Spread(median(values), min(values), max(values))
    unfinished = max(result.unfinished for result in results)
    return VariantSummary(
        name=name, starts=len(results), unfinished=unfinished, spend=results[0].spend, **spreads
    )


@lru_cache(maxsize=1)
def _recording(place: Path) -> Recording:
    return read_recording(place)


def _replayed(task: Task) -> ReplayResult:
    place, variant, start, tick_s = task
    return Replay(_recording(place), variant, start, tick_s).run()


def _run_all(tasks: Sequence[Task], jobs: int) -> Iterable[ReplayResult]:
    workers = min(jobs, len(tasks))
    if workers <= 1:
        yield from map(_replayed, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=quiet) as pool:
        yield from pool.map(_replayed, tasks)
