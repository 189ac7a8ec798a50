"""Render simulated runs: header, summary, state at the end of a replay, progress of a sweep, answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.base.text import duration, short_duration
from muster.cli.console import new_figure, save_figure
from muster.cli.sim.tune_command import Reply
from muster.cli.tune.table import plain, strict_json
from muster.host.machine import program
from muster.sim.cluster.options import GIB
from muster.sim.cluster.story import CLOSES, OPENS, SAMPLE_S, DayStory, Moment
from muster.sim.tune.what_if import SchedulerResult, over_time

_STYLES = (("c", "blue"), ("s", "green"), ("g", "yellow"), ("G", "magenta"), ("x", "cyan"))
_WHO = {"users": ("▸", "bold"), "cloud": ("☁", "red"), "muster": (" ", "")}
_BARS = " ▁▂▃▄▅▆▇█"


def story_pages(story: DayStory) -> Iterator[RenderableType]:
    """Yield the story of a day: node types, events, costs."""
    styles = {t.name: style for t, style in zip(story.types, _STYLES, strict=False)}
    yield Text("A day of an autoscaled cluster", style="bold")
    yield Text(
        "Simulated cloud and clock; the controller and planner are the real ones. "
        "▸ users, ☁ the cloud; every other line is what muster decided, and why.\n",
        style="dim",
    )
    yield _legend(story, styles)
    yield Text()
    yield _moments(story, styles)
    yield Text()
    yield from _money(story)


def _legend(story: DayStory, styles: Mapping[str, tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for node_type in story.types:
        letter, style = styles[node_type.name]
        size = node_type.resources.to_floats()
        parts = [f"{size['CPU']:g} CPU", f"{size['memory'] / GIB:g} GB"]
        if "GPU" in size:
            parts.append(f"{size['GPU']:g} GPU")
        price = f"${node_type.price_per_hour or 0:.2f}/h"
        table.add_row(Text(letter, style=f"bold {style}"), node_type.name, ", ".join(parts), price)
    return table


def _moments(story: DayStory, styles: Mapping[str, tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", expand=True)
    table.add_column("time", no_wrap=True)
    table.add_column("", no_wrap=True, width=1)
    table.add_column("what and why", ratio=1)
    table.add_column("nodes", no_wrap=True, min_width=10)
    table.add_column("$/hour", justify="right", no_wrap=True)
    table.add_column("spent $", justify="right", no_wrap=True)
    for moment in story.moments:
        mark, style = _WHO[moment.event.who]
        table.add_row(
            _clock(moment.time_s),
            Text(mark, style=style),
            _sentence(moment, style),
            _letters(moment.nodes, styles),
            f"{moment.price_per_hour:.2f}",
            f"{moment.spent:.2f}",
        )
    return table


def _sentence(moment: Moment, style: str) -> Text:
    sentence = moment.event
    machines = ", ".join(f"{count} {name}" for name, count in sorted(sentence.machines.items()))
    text = Text(f"{sentence.what} {machines}".rstrip(), style=style)
    if sentence.why:
        text.append(f"\n{sentence.why}", style="dim not bold")
    return text


def _letters(nodes: Mapping[str, int], styles: Mapping[str, tuple[str, str]]) -> Text:
    text = Text()
    for name, (letter, style) in styles.items():
        text.append(letter * nodes.get(name, 0), style=f"bold {style}")
    return text if text.plain else Text("·", style="dim")


def _money(story: DayStory) -> Iterator[RenderableType]:
    top = max(story.samples) or 1.0
    bars = "".join(_BARS[round(price / top * (len(_BARS) - 1))] for price in story.samples)
    yield Text(f"$/hour through the day (each column {SAMPLE_S / 60:.0f} min, top ${top:.2f})", style="dim")
    yield Text(bars, style="green")
    yield Text(f"{_clock(OPENS)}{_clock(CLOSES):>{len(bars) - 5}}\n", style="dim")
    share = story.spent / story.at_peak_all_day if story.at_peak_all_day else 0.0
    left = "only the head is left" if story.machines_left == 1 else f"{story.machines_left} left"
    peak = f"${story.peak_per_hour:.2f}/h at {_clock(story.peak_at_s)}, kept for {story.hours:g} h"
    waits = f"waited {story.median_wait_s:.0f} s (median), {story.longest_wait_s:.0f} s (longest) for a place"
    rows = (
        ("spent", f"${story.spent:.2f}", f"{story.machines_launched} machines launched over the day, {left}"),
        ("at peak all day", f"${story.at_peak_all_day:.2f}", f"{peak}: the day cost {share:.0%} of that"),
        ("tasks", str(story.tasks_finished), waits),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    for row in rows:
        table.add_row(*row)
    yield Padding(table, (0, 0, 1, 0))
    yield Text(f"Next: {program()} sim tune --help", style="dim")


def _clock(time_s: float) -> str:
    return f"{int(time_s // 3600):02d}:{int(time_s % 3600 // 60):02d}"


FORMAT = 1


def reply_pages(reply: Reply) -> list[RenderableType]:
    """Return the tables of `muster sim tune`: each scheduler's best, its course over time, its config."""
    configs = [
        f"best of {answer.scheduler}: {plain(answer.best.config)} at iteration {answer.best.iteration}"
        for answer in reply.answers
        if answer.best is not None
    ]
    return [_found(reply), "", _over_time(reply), "", *configs]


def _found(reply: Reply) -> Table:
    first = reply.answers[0]
    title = (
        f"{reply.options.workers} workers, {first.metric} ({first.mode}); node-hours used by then and in all"
    )
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("scheduler", overflow="fold")
    for column in ("best", "found at", "by then", "ended at", "node-h", "trials"):
        table.add_column(column, justify="right", no_wrap=True)
    for answer in reply.answers:
        best = answer.best
        table.add_row(
            answer.scheduler,
            "-" if best is None else f"{best.value:.6g}",
            "-" if best is None else _narrow(best.at_s),
            "-" if best is None else f"{best.worker_s / 3600.0:.3g} h",
            _narrow(answer.end_s),
            f"{answer.worker_s / 3600.0:.3g}",
            f"{answer.trials}" + (f" ({answer.failed} failed)" if answer.failed else ""),
        )
    return table


def _narrow(seconds: float) -> str:
    """One number: two would fold the scheduler's name on a terminal of 80 columns."""
    return short_duration(seconds) if seconds >= 60.0 else duration(seconds)


def _over_time(reply: Reply) -> Table:
    title = "best value over time"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("after", justify="right")
    for answer in reply.answers:
        table.add_column(answer.scheduler, justify="right")
    for row in over_time(reply.answers):
        shown = [row.best[answer.scheduler] for answer in reply.answers]
        table.add_row(duration(row.at_s), *("-" if value is None else f"{value:.6g}" for value in shown))
    return table


def as_document(reply: Reply) -> bytes:
    """Return the answers as one JSON document."""
    content = {
        "format": FORMAT,
        "trace": reply.options.trace,
        "workers": reply.options.workers,
        "answers": [_answer(answer) for answer in reply.answers],
        "over_time": [{"at_s": row.at_s, "best": dict(row.best)} for row in over_time(reply.answers)],
        "notes": reply.remarks,
    }
    return strict_json(content, indent=2).encode()


def _answer(answer: SchedulerResult) -> dict[str, object]:
    fields = ("scheduler", "metric", "mode", "end_s", "worker_s", "trials", "failed", "results")
    found = [{name: getattr(one, name) for name in one.__struct_fields__} for one in answer.found]
    return {
        **{name: getattr(answer, name) for name in fields},
        "best": found[-1] if found else None,
        "found": found,
    }


def draw(reply: Reply, path: Path) -> None:
    """Draw the best value over time to a file. Raises ConfigError without matplotlib."""
    figure = new_figure(12, 4.5)
    for cell, axis, label in zip(
        figure.subplots(1, 2), ("at_s", "worker_s"), ("hours", "node-hours"), strict=True
    ):
        for answer in reply.answers:
            end = answer.end_s if axis == "at_s" else answer.worker_s
            moments = [getattr(one, axis) / 3600.0 for one in answer.found] + [end / 3600.0]
            values = [one.value for one in answer.found]
            cell.step(
                moments,
                [*values, *values[-1:]] if values else [float("nan")],
                where="post",
                label=answer.scheduler,
            )
        cell.set(xlabel=label, ylabel=reply.answers[0].metric)
        cell.grid(alpha=0.3)
        cell.legend(fontsize=8)
    save_figure(figure, path)
