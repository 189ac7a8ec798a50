"""Render seed runs: header, summary, state at the end of a replay, progress of a sweep."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tests.simulation.cluster import FaultyCluster
from tests.simulation.run import Report, SeedRun

from muster.cluster.model import health_key
from muster.cluster.plan import Subject

_REQUESTS = (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT)


def header(run: SeedRun) -> str:
    """Return the seed and every drawn option."""
    drawn = run.header()
    rates = drawn.pop("faults")
    lines = [f"seed {run.seed.value}", *(f"  {name:<20} {_shown(value)}" for name, value in drawn.items())]
    if isinstance(rates, dict):
        faults = [f"{kind}={rate:g}" for kind, rate in rates.items()] or ["none"]
        lines.append(f"  {'faults':<20} {' '.join(faults)}")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def summary(report: Report) -> str:
    """Return the outcome of a run in a few lines."""
    injected = " ".join(f"{kind}={count}" for kind, count in report.faults.items())
    return "\n".join(
        (
            "",
            f"trace {report.trace_hash}   {report.ticks} ticks ({report.faulty_ticks} with faults), "
            f"{report.lives} controller lives",
            f"machines: {report.machines_launched} launched, {report.machines_left} left (head included);"
            f" {report.tasks_finished} tasks finished",
            f"spend: ${report.spent:.4f} in the ledger, ${report.bill:.4f} on the bill (ticks are late)",
            f"faults injected: {injected or 'none'}",
            "all properties held" if report.ok else f"{len(report.violations)} violations",
        )
    )


def standstill(cluster: FaultyCluster) -> list[RenderableType]:
    """Return the tables of the world at the tick where a replay stops."""
    return [_instances(cluster), _machines(cluster), _pending(cluster)]


def _instances(cluster: FaultyCluster) -> Table:
    table = _table("instances", "id", "type", "state", "machine", "node", "since", "details")
    for record in cluster.store.live.values():
        since = f"{record.since - cluster.world.wall_shift:.0f}"
        bought_as = health_key(record.node_type, record.offer_name)
        columns = (record.instance_id, bought_as, record.state.name)
        table.add_row(*columns, record.cloud_id or "-", record.node_id or "-", since, record.details)
    return table


def _machines(cluster: FaultyCluster) -> Table:
    table = _table("machines (truth)", "id", "type", "born", "node", "tasks", "$/h")
    for machine in cluster.cloud.alive():
        node = cluster.runtime.node_on(machine)
        no_node = "none" if machine.up else "booting" if machine.answers(cluster.world.time) else "host off"
        status = f"{node.node_id} {node.status.name}" if node else no_node
        born, price = f"{machine.created_at:.0f}", f"{machine.price_per_hour:g}"
        tasks = str(len(node.running)) if node else "-"
        bought_as = health_key(machine.node_type, machine.offer.name if machine.offer else "")
        table.add_row(machine.cloud_id, bought_as, born, status, tasks, price)
    return table


def _pending(cluster: FaultyCluster) -> Table:
    table = _table("pending demand", "who", "count", "reason", "detail")
    for verdict in cluster.plan.verdicts if cluster.plan else ():
        if verdict.subject in _REQUESTS:
            name, about = f"{verdict.subject.value} {verdict.subject_id}", verdict.detail or verdict.target
            table.add_row(name, str(verdict.count), verdict.reason.value, about)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class SweepProgress:
    """Draws a bar on the error stream while seeds run, and counts totals."""

    def __init__(self, seeds: int) -> None:
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("seeds", total=seeds)
        self._seeds = self._failed = self._ticks = self._lives = self._machines = 0
        self._faults: Counter[str] = Counter()

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, report: Report) -> None:
        """Count one finished seed."""
        self._seeds += 1
        self._failed += not report.ok
        self._ticks += report.ticks
        self._lives += report.lives
        self._machines += report.machines_launched
        self._faults.update(report.faults)
        self._bar.advance(self._task)

    def summary(self) -> str:
        """Return the totals as one line."""
        kinds = len(self._faults)
        return (
            f"{self._seeds} seeds, {self._ticks} ticks, {self._lives} controller lives, "
            f"{self._machines} machines, {sum(self._faults.values())} faults of {kinds} kinds: "
            f"{self._failed} seeds with violations"
        )
