"""Draw a snapshot as styled lines for a terminal of a given size; imported lazily, because it loads rich.

Columns keep their position and only grow, so that the table stands still while its numbers change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from muster.tune.reporting import summary
from muster.tune.reporting.formats import amount, brief, cell, duration, home_relative, rate, shortened
from muster.tune.reporting.periodic import ExperimentSnapshot
from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.tables import columns_for, parameter, parameters_of, status_of
from muster.tune.reporting.tally import INTERRUPTED, STARTING, lookup

if TYPE_CHECKING:
    from muster.trials.model import Trial


GAP = 2


class Column(NamedTuple):
    """One flat key of a config or of results."""

    key: str
    title: str
    is_parameter: bool
    importance: int  # smaller: left out later


def columns_of(trials: Sequence[Trial], info: RunInfo) -> list[Column]:
    """Return parameters, then metrics; the optimized metric is the most important, then the iteration."""
    found = columns_for(trials, info.parameters, info.metric)
    columns = [Column(key, shortened(key), True, 2) for key in found.parameters]
    for key in found.metrics:
        title = {"training_iteration": "iter", "time_total_s": "time (s)"}.get(key, shortened(key))
        importance = 0 if key == info.metric else 1 if key == "training_iteration" else 3
        columns.append(Column(key, title, False, importance))
    return columns


class LiveTable:
    """Remembers columns and widths: columns are added and widened, never removed or narrowed."""

    def __init__(self, styles: Mapping[str, str], star: str) -> None:
        self._styles = styles
        self._star = star
        self._status_width = len("TERMINATED")
        self._columns: dict[str, Column] = {}
        self._widths: dict[str, int] = {"": 0}

    def learn(self, columns: Sequence[Column]) -> None:
        for column in columns:
            key = f"{'c' if column.is_parameter else 'r'}:{column.key}"
            if key not in self._columns:
                self._columns[key] = column
                self._widths[key] = len(column.title)
        order = [*(k for k in self._columns if k[0] == "c"), *(k for k in self._columns if k[0] == "r")]
        self._columns = {key: self._columns[key] for key in order}

    def lines(
        self, trials: Sequence[Trial], width: int, starred: Sequence[Trial], *, interrupted: bool = False
    ) -> list[Text]:
        """Return a header and a line per trial."""
        self._status_width = len(INTERRUPTED if interrupted else "TERMINATED")
        rows = [self._cells(trial) for trial in trials]
        for row in rows:
            for key, text in row.items():
                self._widths[key] = max(self._widths[key], len(text))
        names = [shortened(str(trial), 24) for trial in trials]
        self._widths[""] = max(self._widths[""], *(len(name) for name in names), len("trial"))
        fitting = self._fitting(width)
        titles = "".join(" " * GAP + self._columns[col].title.rjust(self._widths[col]) for col in fitting)
        header = f"  {'trial'.ljust(self._widths[''])}  {'status'.ljust(self._status_width)}{titles}"
        lines = [Text(header, style="dim")]
        for trial, name, row in zip(trials, names, rows, strict=True):
            is_best = any(trial is one for one in starred)
            line = Text().append(f"{self._star if is_best else ' '} ", style="yellow")
            line.append(name.ljust(self._widths[""]), style="bold" if is_best else "")
            status = status_of(trial, interrupted)
            line.append("  " + status.ljust(self._status_width), style=self._styles[status])
            for key in fitting:
                line.append(" " * GAP + row[key].rjust(self._widths[key]))
            lines.append(line)
        return lines

    def _fitting(self, width: int) -> list[str]:
        """Return the most important columns that fit beside name and status, in their usual order."""
        left = width - 2 - self._widths[""] - 2 - self._status_width
        kept = set()
        for key in sorted(self._columns, key=lambda key: self._columns[key].importance):
            needed = GAP + self._widths[key]
            if needed <= left:
                kept.add(key)
                left -= needed
        return [key for key in self._columns if key in kept]

    def _cells(self, trial: Trial) -> dict[str, str]:
        return {
            key: cell(parameter(trial, column.key))
            if column.is_parameter
            else cell(lookup(trial.last_result, column.key))
            for key, column in self._columns.items()
        }


BAR_MAX = 48
RECENT_ROWS = 5
FAILURE_LINES = 4
FINAL_ROWS = 20  # enough to read at the end; the files have the rest
STATUS_STYLES = {
    "RUNNING": "cyan",
    "TERMINATED": "green",
    "PAUSED": "yellow",
    "PENDING": "dim",
    "ERROR": "bold red",
    INTERRUPTED: "yellow",
    STARTING: "cyan",
}


class Glyphs(NamedTuple):
    """Holds the signs of the view, for terminals that can show them and for those that cannot."""

    done: str
    todo: str
    dot: str
    star: str
    cross: str


UTF = Glyphs("━", "─", "·", "★", "✗")
ASCII = Glyphs("#", "-", "|", "*", "x")


def glyphs_for(encoding: str) -> Glyphs:
    try:
        "".join(UTF).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UTF


class LiveView:
    """Draws one experiment; it remembers the widths of its columns."""

    def __init__(self, glyphs: Glyphs = UTF, *, home: str = "") -> None:
        self._glyphs = glyphs
        self._home = home
        self._table = LiveTable(STATUS_STYLES, glyphs.star)

    def draw(self, snapshot: ExperimentSnapshot, size: tuple[int, int]) -> RenderableType:
        """Return what fits into `size` (columns, lines): less important lines are left out first."""
        width, height = size
        head = [*self._title(snapshot, width), self._progress(snapshot, width), self._counts(snapshot)]
        head += [self._resources(snapshot), *self._best(snapshot, width)]
        failures = self._failures(snapshot, width)
        room = height - len(head) - len(failures) - 3
        return _lines([Text(), *head, *self._rows(snapshot, room, width), *failures], width)

    def conclusion(
        self,
        snapshot: ExperimentSnapshot,
        trials: Sequence[Trial],
        size: tuple[int, int],
        *,
        interrupted: bool,
    ) -> list[RenderableType]:
        """Return what stays on the terminal."""
        width = size[0]
        head = [*self._title(snapshot, width), self._progress(snapshot, width), self._counts(snapshot)]
        rows, more = summary.final_rows(snapshot, trials, max_rows=FINAL_ROWS, interrupted=interrupted)
        parts: list[RenderableType] = [
            _lines([*head, *self._final_table(snapshot, rows, more, width, interrupted)], width)
        ]
        parts += self._error_table(trials)
        parts += [Text(line, style="bold red") for line in summary.cause_lines(snapshot)]
        parts += [Text(line, style="bold") for line in summary.best_lines(snapshot)[:1]]
        parts += summary.best_lines(snapshot)[1:]
        if interrupted:
            parts += ["", *summary.resume_lines(snapshot.info, trials)]
        else:
            parts += summary.where_lines(snapshot, self._home)
        return parts

    def _title(self, snapshot: ExperimentSnapshot, width: int) -> list[Text]:
        info = snapshot.info
        title = Text().append(info.name, style="bold")
        how = f"{info.searcher} {self._glyphs.dot} {info.scheduler}"
        how += f" {self._glyphs.dot} resumed" if info.is_resumed else ""
        head = [title, Text(how, style="dim")]
        if len(info.name) + GAP + len(how) <= width:
            head = [title.append(" " * GAP + how, style="dim")]
        return [*head, Text(shortened(home_relative(info.directory, self._home), width), style="dim"), Text()]

    def _progress(self, snapshot: ExperimentSnapshot, width: int) -> Text:
        total, finished = snapshot.info.total, snapshot.finished
        line = Text()
        if total:
            share = min(1.0, finished / total)
            room = max(8, min(BAR_MAX, width - 44))
            done = int(share * room)
            bar = Text().append(self._glyphs.done * done, style="green")
            line.append_text(bar.append(self._glyphs.todo * (room - done), style="dim"))
            line.append(f"  {finished:,}/{total:,}  {int(share * 100)}%")
        else:
            line.append(f"{finished:,} trials finished")
        line.append(f"  {duration(snapshot.elapsed_s)}", style="dim")
        if snapshot.eta_s is not None and snapshot.eta_s > 0:
            line.append(f"  {duration(snapshot.eta_s)} left", style="dim")
        if cost := snapshot.info.cost():
            line.append(f"  {cost}", style="dim")
        return line

    def _counts(self, snapshot: ExperimentSnapshot) -> Text:
        shown = [(status, count) for status, count in snapshot.counts.items() if count]
        line = Text(f" {self._glyphs.dot} ").join(
            Text(f"{count:,} {status}", style=STATUS_STYLES[status]) for status, count in shown
        )
        if not shown:
            line = Text("starting", style="dim")
        return line

    def _resources(self, snapshot: ExperimentSnapshot) -> Text:
        capacity, used = snapshot.info.capacity, snapshot.used
        parts = [
            f"{name} {amount(used.get(name, 0))}/{amount(total)}"
            for name, total in capacity.items()
            if name != "memory"
        ]
        if used.get("memory"):
            amounts = [f"{count / 2**30:.1f}" for count in (used["memory"], capacity.get("memory", 0))]
            parts.append(f"memory {'/'.join(amounts)} GiB")
        if snapshot.per_second is not None:
            parts.append(rate(snapshot.per_second))
        return Text("  ".join(parts), style="dim")

    def _best(self, snapshot: ExperimentSnapshot, width: int) -> list[Text]:
        trial = snapshot.best_trial
        if trial is None:
            return []
        line = Text().append(f"{self._glyphs.star} ", style="yellow")
        line.append(f"{snapshot.info.metric} {cell(snapshot.best_value)}", style="bold")
        line.append(f"  {trial.trial_id}", style="dim")
        values = parameters_of(trial, snapshot.info.parameters)
        words = [f"{key}={brief(value)}" for key, value in values.items()]
        line.append(" " + _fitting_words(words, width - len(line) - 1))
        return [Text(), line]

    def _rows(self, snapshot: ExperimentSnapshot, room: int, width: int) -> list[Text]:
        """Return running trials, then the best, then the latest, as many as there is space for."""
        best = [each.trial for each in snapshot.best] or [*snapshot.front[:RECENT_ROWS]]
        others = [trial for trial in (*best, *snapshot.recent[:RECENT_ROWS]) if trial.status != "RUNNING"]
        running = snapshot.running[: max(1, room - 2 - len(others), (room - 2) // 2)]
        trials = list(dict.fromkeys([*running, *best, *others]))
        if room < 3 or not trials:
            return []
        columns = columns_of(trials, snapshot.info)
        self._table.learn(columns)
        return [Text(), *self._table.lines(trials[: room - 2], width, snapshot.starred)]

    def _final_table(
        self, snapshot: ExperimentSnapshot, rows: Sequence[Trial], more: str, width: int, interrupted: bool
    ) -> list[Text]:
        if not rows:
            return [Text()]
        self._table.learn(columns_of(rows, snapshot.info))
        lines = [Text(), *self._table.lines(rows, width, snapshot.starred, interrupted=interrupted)]
        return [*lines, *([Text(more, style="dim")] if more else []), Text()]

    def _failures(self, snapshot: ExperimentSnapshot, width: int) -> list[Text]:
        """Return the latest two failures: what happened, and where the traceback is."""
        lines: list[Text] = []
        for failed in snapshot.failures[-2:]:
            again = "" if failed.trial.status == "ERROR" else " (tried again)"
            text = f"{self._glyphs.cross} {failed.trial}: {failed.message or 'failed before this run'}{again}"
            wrapped = textwrap.wrap(
                text, width, subsequent_indent="  ", max_lines=FAILURE_LINES, placeholder=" ..."
            )
            lines += [Text(line, style="red") for line in wrapped]
            if file := summary.error_file(failed.trial):
                lines.append(Text(f"  {shortened(home_relative(file, self._home), width - 2)}", style="dim"))
        return [Text(), *lines] if lines else []

    def _error_table(self, trials: Sequence[Trial]) -> list[RenderableType]:
        table = summary.error_table(trials)
        if table is None:
            return []
        before, after = summary.error_lines(trials)
        parts: list[RenderableType] = [Text(before, style="bold red")]
        for name, failures, file in table.rows:
            times = "" if failures in ("0", "1") else f" ({failures} failures)"
            parts.append(f"  {name}{times}  {home_relative(file, self._home)}")
        parts += [f"  {line}" for line in (table.more, after) if line]
        return [*parts, ""]


def _lines(lines: Sequence[Text], width: int) -> Group:
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _fitting_words(words: Sequence[str], width: int) -> str:
    """Return as many whole words as fit, and how many more there are."""
    for count in range(len(words), -1, -1):
        more = f" and {len(words) - count} more" if count < len(words) else ""
        text = "".join(f" {word}" for word in words[:count]) + more
        if len(text) <= width:
            return text
    return ""
