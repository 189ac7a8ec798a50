"""Show an experiment in a notebook as one block of HTML in the cell's output, updated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock
from muster.trials.metrics import flatten
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.reporting import summary
from muster.tune.reporting.formats import cell, duration
from muster.tune.reporting.periodic import ExperimentSnapshot, PeriodicReporter, rows_of
from muster.tune.reporting.plain import resource_line
from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.tables import (
    TrialTable,
    best_first,
    columns_for,
    html_table,
    parameters_of,
    table_of,
)

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.analysis import ExperimentAnalysis

REFRESH_S = 0.5
Show = Callable[[str], None]

_STYLE = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;border-left:3px solid #4a90d9;"
    "padding:4px 12px;margin:4px 0"
)
_COLOURS = {"RUNNING": "#1a7fb5", "TERMINATED": "#2e8b57", "PAUSED": "#b58900", "ERROR": "#c0392b"}


def notebook_output() -> Show:
    """Return a function that shows HTML in the current cell, and replaces it from then on."""
    from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

    handle: list[Any] = []

    def show(html: str) -> None:
        if handle and handle[0] is not None:
            handle[0].update(HTML(html))
        else:
            handle[:] = [display(HTML(html), display_id=True)]

    return show


class NotebookReporter(PeriodicReporter):
    """Shows HTML by what `output` returns, called once per run."""

    def __init__(self, *, clock: Clock, output: Callable[[], Show] = notebook_output) -> None:
        super().__init__(clock=clock, period_s=REFRESH_S)
        self._output = output
        self._show: Show = lambda html: None
        self._notes: list[str] = []

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._show, self._notes = self._output(), []
        self.show(self.snapshot(()), ())

    def note(self, text: str) -> None:
        self._notes = [*self._notes, text][-5:]

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        rows, more = rows_of(snapshot, trials)
        self._show(page(snapshot, rows, more, notes=self._notes, errors=None))

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        rows, more = summary.final_rows(snapshot, trials, interrupted=interrupted)
        last = summary.cause_lines(snapshot)
        last += summary.resume_lines(snapshot.info, trials) if interrupted else summary.where_lines(snapshot)
        errors = summary.error_table(trials)
        notes = [*self._notes, *last]
        self._show(page(snapshot, rows, more, notes=notes, errors=errors, interrupted=interrupted))


def page(
    snapshot: ExperimentSnapshot,
    rows: Sequence[Trial],
    more: str,
    *,
    notes: Sequence[str],
    errors: TrialTable | None,
    interrupted: bool = False,
) -> str:
    """Return the whole block. Everything of the user's is escaped."""
    info = snapshot.info
    parts = [
        f"<b>{escape(info.name)}</b> <span style='opacity:.6'>{escape(info.searcher)} · "
        f"{escape(info.scheduler)}</span><br><code>{escape(info.directory)}</code>",
        _progress(snapshot),
        (
            " · ".join(
                f"<span style='color:{_COLOURS.get(status, 'inherit')}'>{count:,} {status}</span>"
                for status, count in snapshot.counts.items()
                if count
            )
        ),
        escape(resource_line(info.capacity, snapshot.used)),
        _best(snapshot),
    ]
    if rows:
        table = table_of(rows, columns_for(rows, info.parameters, info.metric), interrupted=interrupted)
        parts += [html_table(table.headers, table.rows), escape(more)]
    if errors is not None:
        title = f"<b style='color:{_COLOURS['ERROR']}'>Trials with errors</b>"
        parts += [title, html_table(errors.headers, errors.rows), errors.more]
    else:
        parts += [_failure(snapshot)]
    parts += [f"<pre style='margin:0'>{escape(note)}</pre>" for note in notes]
    shown = "".join(f"<div>{part}</div>" for part in parts if part)
    return f"<div class='muster-progress' style='{_STYLE}'>{shown}</div>"


def _progress(snapshot: ExperimentSnapshot) -> str:
    total = snapshot.info.total
    left = f", {duration(snapshot.eta_s)} left" if snapshot.eta_s else ""
    words = f"{duration(snapshot.elapsed_s)}{left}"
    if not total:
        return f"{snapshot.finished:,} trials finished · {words}"
    bar = f"<progress value='{snapshot.finished}' max='{total}'></progress>"
    return f"{bar} {snapshot.finished:,}/{total:,} · {words}"


def _best(snapshot: ExperimentSnapshot) -> str:
    trial, info = snapshot.best_trial, snapshot.info
    if trial is None:
        return ""
    values = ", ".join(f"{key}={value!r}" for key, value in parameters_of(trial, info.parameters).items())
    score = f"{info.metric} {cell(snapshot.best_value)}"
    return f"★ <b>{escape(score)}</b> {escape(trial.trial_id)} <code>{escape(values)}</code>"


def _failure(snapshot: ExperimentSnapshot) -> str:
    if not snapshot.failures:
        return ""
    failed = snapshot.failures[-1]
    text = escape(f"{failed.trial}: {failed.message}")
    return (
        f"<span style='color:{_COLOURS['ERROR']}'>✗ {text}</span> {escape(summary.error_file(failed.trial))}"
    )


GRID_ROWS = 20


def grid_page(analysis: ExperimentAnalysis) -> str:
    """Return a finished experiment as HTML: counts, the best trials with their configs, and the errors."""
    metric, mode = analysis.default_metric, analysis.default_mode
    trials = analysis.trials
    shown = best_first(trials, metric, mode)[:GRID_ROWS]
    keys = list(dict.fromkeys(key for trial in shown for key in flatten(trial.config)))
    results = [trial.last_result.items() for trial in shown]
    reported = [{name: value for name, value in row if name not in AUTO_RESULT_KEYS} for row in results]
    own = dict.fromkeys(key for row in reported for key in flatten(row))
    metrics = [metric] if metric in own else list(own)
    rows = [
        [trial.trial_id, trial.status, *(cell(flatten(trial.last_result).get(key)) for key in metrics)]
        + [cell(flatten(trial.config).get(key)) for key in keys]
        for trial in shown
    ]
    failed = [trial for trial in trials if trial.status == "ERROR"]
    last = str(failed[-1].error).strip().rsplit("\n", 1)[-1] if failed else ""
    parts = [
        f"<b>{len(trials):,} trials</b>, {len(failed):,} failed<br>"
        f"<code>{escape(analysis.experiment_path)}</code>",
        html_table(["trial", "status", *metrics, *keys], rows) if rows else "",
        f"... and {len(trials) - len(shown):,} more" if len(trials) > len(shown) else "",
        f"<span style='color:{_COLOURS['ERROR']}'>✗ {escape(last)}</span>" if failed else "",
    ]
    return f"<div style='{_STYLE}'>{''.join(f'<div>{part}</div>' for part in parts if part)}</div>"
