"""How simulated runs look in a terminal: header, summary, standstill, progress of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from muster.cluster.plan import Subject, Verdict
from muster.sim.cluster.build import Scene
from muster.sim.cluster.options import GIB
from muster.sim.cluster.run import Report, Run
from muster.sim.cluster.story import CLOSES, OPENS, SAMPLE_S, DayStory, Moment

_REQUESTS = (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT)


def header(run: Run) -> str:
    """The seed and every drawn option."""
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
    """What came of the run, in a few lines."""
    injected = " ".join(f"{kind}={count}" for kind, count in report.faults.items())
    return "\n".join(
        (
            "",
            f"trace {report.trace_hash}   {report.ticks} ticks ({report.faulty_ticks} with faults), "
            f"{report.lives} controller lives",
            f"machines: {report.machines_bought} bought, {report.machines_left} left (head included);"
            f" {report.tasks_finished} tasks finished",
            f"spend: ${report.spent:.4f} in the ledger, ${report.bill:.4f} on the bill (looks are late)",
            f"faults injected: {injected or 'none'}",
            "all properties held" if report.ok else f"{len(report.violations)} violations",
        )
    )


def standstill(scene: Scene) -> list[RenderableType]:
    """The world at the moment a replay stops."""
    return [_instances(scene), _machines(scene), _pending(scene)]


def _instances(scene: Scene) -> Table:
    table = _table("instances", "id", "type", "state", "machine", "node", "since", "said")
    for record in scene.store.live.values():
        since = f"{record.since - scene.world.wall_shift:.0f}"
        columns = (record.instance_id, record.node_type, record.state.name)
        table.add_row(*columns, record.cloud_id or "-", record.node_id or "-", since, record.details)
    return table


def _machines(scene: Scene) -> Table:
    table = _table("machines (truth)", "id", "type", "born", "node", "tasks", "$/h")
    for machine in scene.cloud.alive():
        node = scene.runtime.node_on(machine)
        status = f"{node.node_id} {node.status.name}" if node else "booting" if not machine.up else "none"
        born, price = f"{machine.created_at:.0f}", f"{machine.price_per_hour:g}"
        tasks = str(len(node.running)) if node else "-"
        table.add_row(machine.cloud_id, machine.node_type, born, status, tasks, price)
    return table


def _pending(scene: Scene) -> Table:
    table = _table("pending demand", "who", "count", "reason", "detail")
    for verdict in scene.plan.verdicts if scene.plan else ():
        if verdict.subject in _REQUESTS:
            table.add_row(*_row(verdict))
    return table


def _row(verdict: Verdict) -> tuple[str, str, str, str]:
    name = f"{verdict.subject.value} {verdict.subject_id}"
    return name, str(verdict.count), verdict.reason.value, verdict.detail or verdict.target


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class SweepProgress:
    """A bar on the error stream while seeds run, and the totals afterwards."""

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
        self._seeds += 1
        self._failed += not report.ok
        self._ticks += report.ticks
        self._lives += report.lives
        self._machines += report.machines_bought
        self._faults.update(report.faults)
        self._bar.advance(self._task)

    def summary(self) -> str:
        kinds = len(self._faults)
        return str(
            Text(
                f"{self._seeds} seeds, {self._ticks} ticks, {self._lives} controller lives, "
                f"{self._machines} machines, {sum(self._faults.values())} faults of {kinds} kinds: "
                f"{self._failed} seeds with violations"
            )
        )


_LOOKS = (("c", "blue"), ("s", "green"), ("g", "yellow"), ("G", "magenta"), ("x", "cyan"))
_WHO = {"people": ("▸", "bold"), "cloud": ("☁", "red"), "muster": (" ", "")}
_BARS = " ▁▂▃▄▅▆▇█"


def story_pages(story: DayStory) -> Iterator[RenderableType]:
    """Top to bottom: what is for sale, what happened, what it cost."""
    looks = {t.name: look for t, look in zip(story.types, _LOOKS, strict=False)}
    yield Text("A day of an autoscaled cluster", style="bold")
    yield Text(
        "Simulated cloud and clock; the controller and planner are the real ones. "
        "▸ people, ☁ the cloud; every other line is what muster decided, and why.\n",
        style="dim",
    )
    yield _legend(story, looks)
    yield Text()
    yield _moments(story, looks)
    yield Text()
    yield from _money(story)


def _legend(story: DayStory, looks: Mapping[str, tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for node_type in story.types:
        letter, style = looks[node_type.name]
        size = node_type.resources.to_floats()
        parts = [f"{size['CPU']:g} CPU", f"{size['memory'] / GIB:g} GB"]
        if "GPU" in size:
            parts.append(f"{size['GPU']:g} GPU")
        price = f"${node_type.price_per_hour or 0:.2f}/h"
        table.add_row(Text(letter, style=f"bold {style}"), node_type.name, ", ".join(parts), price)
    return table


def _moments(story: DayStory, looks: Mapping[str, tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", expand=True)
    table.add_column("time", no_wrap=True)
    table.add_column("", no_wrap=True, width=1)
    table.add_column("what and why", ratio=1)
    table.add_column("nodes", no_wrap=True, min_width=10)
    table.add_column("$/hour", justify="right", no_wrap=True)
    table.add_column("spent $", justify="right", no_wrap=True)
    for moment in story.moments:
        mark, style = _WHO[moment.said.who]
        table.add_row(
            _clock(moment.time_s),
            Text(mark, style=style),
            _told(moment, style),
            _letters(moment.nodes, looks),
            f"{moment.price_per_hour:.2f}",
            f"{moment.spent:.2f}",
        )
    return table


def _told(moment: Moment, style: str) -> Text:
    said = moment.said
    machines = ", ".join(f"{count} {name}" for name, count in sorted(said.machines.items()))
    text = Text(f"{said.what} {machines}".rstrip(), style=style)
    if said.why:
        text.append(f"\n{said.why}", style="dim not bold")
    return text


def _letters(nodes: Mapping[str, int], looks: Mapping[str, tuple[str, str]]) -> Text:
    text = Text()
    for name, (letter, style) in looks.items():
        text.append(letter * nodes.get(name, 0), style=f"bold {style}")
    return text if text.plain else Text("·", style="dim")


def _money(story: DayStory) -> Iterator[RenderableType]:
    top = max(story.samples) or 1.0
    bars = "".join(_BARS[round(price / top * (len(_BARS) - 1))] for price in story.samples)
    yield Text(f"$/hour through the day (each column {SAMPLE_S / 60:.0f} min, top ${top:.2f})", style="dim")
    yield Text(bars, style="green")
    yield Text(f"{_clock(OPENS)}{_clock(CLOSES):>{len(bars) - 5}}\n", style="dim")
    share = story.spent / story.at_peak_all_day if story.at_peak_all_day else 0.0
    rows = (
        ("spent", f"${story.spent:.2f}", _bought(story)),
        ("at peak all day", f"${story.at_peak_all_day:.2f}", _peak(story, share)),
        ("tasks", str(story.tasks_finished), _waits(story)),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    for row in rows:
        table.add_row(*row)
    yield Padding(table, (0, 0, 1, 0))
    yield Text("Next: muster sim run --seed 7  ·  muster sim sweep --seeds 100", style="dim")


def _bought(story: DayStory) -> str:
    left = "only the head is left" if story.machines_left == 1 else f"{story.machines_left} left"
    return f"{story.machines_bought} machines bought over the day, {left}"


def _peak(story: DayStory, share: float) -> str:
    peak = f"${story.peak_per_hour:.2f}/h at {_clock(story.peak_at_s)}, kept for {story.hours:g} h"
    return f"{peak}: the day cost {share:.0%} of that"


def _waits(story: DayStory) -> str:
    return f"waited {story.median_wait_s:.0f} s (median), {story.longest_wait_s:.0f} s (longest) for a place"


def _clock(time_s: float) -> str:
    return f"{int(time_s // 3600):02d}:{int(time_s % 3600 // 60):02d}"
