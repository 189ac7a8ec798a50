"""LiveTable: the table of trials in the live view. Columns that do not fit are left out, whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from muster.tune.reporting.formats import cell, shortened
from muster.tune.reporting.tables import columns_for, parameter
from muster.tune.reporting.tally import lookup

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.info import RunInfo

GAP = 2


class Column(NamedTuple):
    """One flat key of a config or of results."""

    key: str
    title: str
    is_parameter: bool
    importance: int  # smaller: left out later


def columns_of(trials: Sequence[Trial], info: RunInfo) -> list[Column]:
    """Parameters, then metrics; what is optimised matters most, then how far a trial is."""
    found = columns_for(trials, info.parameters, info.metric)
    columns = [Column(key, shortened(key), True, 2) for key in found.parameters]
    for key in found.metrics:
        title = {"training_iteration": "iter", "time_total_s": "time (s)"}.get(key, shortened(key))
        importance = 0 if key == info.metric else 1 if key == "training_iteration" else 3
        columns.append(Column(key, title, False, importance))
    return columns


class LiveTable:
    """Remembers columns and their widths: they come and grow, and never go or shrink."""

    def __init__(self, styles: Mapping[str, str], star: str) -> None:
        self._styles = styles
        self._star = star
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

    def lines(self, trials: Sequence[Trial], width: int, best: Trial | None) -> list[Text]:
        """A header and a line per trial."""
        rows = [self._cells(trial) for trial in trials]
        for row in rows:
            for key, text in row.items():
                self._widths[key] = max(self._widths[key], len(text))
        names = [shortened(str(trial), 24) for trial in trials]
        self._widths[""] = max(self._widths[""], *(len(name) for name in names), len("trial"))
        fitting = self._fitting(width)
        lines = [self._header(fitting)]
        for trial, name, row in zip(trials, names, rows, strict=True):
            line = Text().append(f"{self._star if trial is best else ' '} ", style="yellow")
            line.append(name.ljust(self._widths[""]), style="bold" if trial is best else "")
            line.append("  " + trial.status.ljust(10), style=self._styles[trial.status])
            for key in fitting:
                line.append(" " * GAP + row[key].rjust(self._widths[key]))
            lines.append(line)
        return lines

    def _header(self, fitting: Sequence[str]) -> Text:
        titles = "".join(" " * GAP + self._columns[key].title.rjust(self._widths[key]) for key in fitting)
        return Text(f"  {'trial'.ljust(self._widths[''])}  {'status'.ljust(10)}{titles}", style="dim")

    def _fitting(self, width: int) -> list[str]:
        """The most important columns that fit beside name and status, in their usual order."""
        left = width - 2 - self._widths[""] - 2 - 10
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
