"""Define Ray's progress reporters, CLIReporter and JupyterNotebookReporter, and what calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock, SystemClock
from muster.base.text import moment
from muster.errors import public
from muster.trials.metrics import rank_key
from muster.tune.reporting.formats import SafeStream, shortened
from muster.tune.reporting.periodic import ReportInterval
from muster.tune.reporting.plain import EventLines, resource_line
from muster.tune.reporting.reporter import Reporter, RunInfo, in_notebook
from muster.tune.reporting.summary import error_lines, error_table, resume_lines
from muster.tune.reporting.tables import (
    KNOWN_METRICS,
    PSQL,
    TrialColumns,
    TrialTable,
    best_first,
    columns_for,
    fair_choice,
    framed,
    html_table,
    parameters_of,
    row_of,
)
from muster.tune.reporting.tally import STATUSES, lookup

if TYPE_CHECKING:
    from muster.trials.model import Trial

logger = logging.getLogger(__name__)

POLL_S = 0.25  # between two questions to `should_report`
_Columns = Mapping[str, str] | Sequence[str]


class ProgressReporter:
    """Shows an experiment periodically; override `should_report` and `report`."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: object,  # what later versions may add
    ) -> None:
        """Called once, before the first trial.

        Args:
            start_time: When the experiment started, in seconds since the epoch.
            total_samples: How many trials there will be.
            metric: The experiment's metric.
            mode: "min" or "max".
            kwargs: Room for arguments of later versions.
        """

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Return whether to report now; called several times a second.

        Args:
            trials: All trials of the experiment so far.
            done: Whether the experiment has ended.
        """
        raise NotImplementedError

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Show the state. `sys_info`: the scheduler's own description, and the resources in use.

        Args:
            trials: All trials of the experiment so far.
            done: Whether the experiment has ended.
            sys_info: Lines about the machine, printed first.
        """
        raise NotImplementedError


@public
class TuneReporterBase(ProgressReporter):
    """Holds what both reporters share: columns, rows, and when to report.

    Args:
        metric_columns: Result keys to show, or `{key: title}`; None: the usual ones and a few others.
        parameter_columns: Config keys to show, or `{key: title}`; None: the searched ones.
        total_samples: How many trials there will be; None: the experiment's.
        max_progress_rows: Rows of the table of trials, shared fairly between statuses.
        max_error_rows: Rows of the table of errors.
        max_column_length: Longer texts keep their end.
        max_report_frequency: Seconds between two reports.
        infer_limit: How many metrics are shown without being asked for.
        print_intermediate_tables: Whether the table is shown before the end; None: by `verbose`.
        metric: The result key that ranks trials; None: the experiment's.
        mode: "min" or "max".
        sort_by_metric: The best trials come first.
    """

    def __init__(  # noqa: PLR0913 - Ray's keywords
        self,
        *,
        metric_columns: _Columns | None = None,
        parameter_columns: _Columns | None = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        self._metric_columns = None if metric_columns is None else _titled(metric_columns)
        self._parameter_columns = None if parameter_columns is None else _titled(parameter_columns)
        self._total_samples = total_samples
        self._max_progress_rows = max_progress_rows
        self._max_error_rows = max_error_rows
        self._max_column_length = max_column_length
        self._max_report_frequency = max_report_frequency
        self._infer_limit = infer_limit
        self._print_intermediate_tables = print_intermediate_tables
        self._metric, self._mode = metric, mode
        self._sort_by_metric = sort_by_metric
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._last_report = float("-inf")
        self._level, self._tables = 3, False
        self._directory = ""
        self._searched: tuple[str, ...] = ()
        if sort_by_metric and (metric is None or mode is None):
            logger.warning(
                "sort_by_metric=True needs metric and mode, here or in TuneConfig; now nothing is sorted"
            )

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: object,
    ) -> None:
        """Set what the constructor was not given."""
        ran_s = 0.0 if start_time is None else self._clock.now() - start_time
        self._began = self._clock.monotonic() - ran_s
        self._total_samples = self._total_samples or total_samples
        self._metric, self._mode = self._metric or metric, self._mode or mode

    def set_verbosity(self, level: int, *, tables: bool = False) -> None:
        """Set the level: 1 no tables, 2 a table at the end, 3 always; `tables` overrides it with always."""
        self._level, self._tables = level, tables

    def set_directory(self, directory: str, searched: Sequence[str]) -> None:
        """Set where results go, and which parameters are searched."""
        self._directory, self._searched = directory, tuple(searched)

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Return True when `max_report_frequency` seconds have passed, and at the end."""
        at = self._clock.monotonic()
        if not done and at - self._last_report < self._max_report_frequency:
            return False
        self._last_report = at
        return True

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show one more key of results; ValueError when it is shown already."""
        columns = dict(KNOWN_METRICS) if self._metric_columns is None else self._metric_columns
        self._metric_columns = _with_column(columns, metric, representation, "metric")

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show one more key of the config; ValueError when it is shown already."""
        columns = self._parameter_columns or {}
        self._parameter_columns = _with_column(columns, parameter, representation, "parameter")

    # What is shown

    def _status(self, trials: Sequence[Trial], *sys_info: str) -> list[str]:
        minutes, seconds = divmod(max(0.0, self._clock.monotonic() - self._began), 60)
        hours, minutes = divmod(int(minutes), 60)
        days, hours = divmod(hours, 24)
        ran = f"{f'{days} days, ' if days else ''}{hours:02d}:{minutes:02d}:{seconds:05.2f}"
        lines = ["== Status ==", f"Current time: {moment(self._clock.now())} (running for {ran})"]
        lines += [*filter(None, sys_info), *self._best(trials)]
        if directory := self._directory or (trials[0].experiment_dir if trials else ""):
            lines.append(f"Result logdir: {directory}")
        counts = {status: sum(trial.status == status for trial in trials) for status in STATUSES}
        shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()) if count)
        planned = f"/{self._total_samples}" if self._total_samples else ""
        lines.append(f"Number of trials: {len(trials)}{planned}" + (f" ({shown})" if shown else ""))
        return lines

    def _best(self, trials: Sequence[Trial]) -> list[str]:
        metric, mode = self._metric, self._mode
        first = next(iter(best_first(trials, metric, mode)), None)
        if first is None or metric is None or mode is None:
            return []
        value = lookup(first.last_result, metric)
        parameters = parameters_of(first, self._parameters(trials))
        line = f"Current best trial: {first.trial_id} with {metric}={value} and parameters={parameters}"
        return [] if rank_key(value, mode) is None else [line]

    def _table(self, trials: Sequence[Trial], done: bool) -> TrialTable | None:
        """Return the trials that are shown; None: no table."""
        is_shown = self._tables or self._level >= (2 if done else 3)
        if not done and self._print_intermediate_tables is not None:
            is_shown = self._print_intermediate_tables
        if not trials or not is_shown:
            return None
        ranked = best_first(trials, self._metric, self._mode) if self._sort_by_metric else trials
        rows, left = fair_choice(ranked, float("inf") if done else self._max_progress_rows)
        metrics = self._metric_columns
        if metrics is None:
            inferred = columns_for(rows, (), self._metric, limit=self._infer_limit).metrics
            metrics = {key: KNOWN_METRICS.get(key, key) for key in inferred}
        parameters = self._parameter_columns or {key: key for key in self._parameters(trials)}
        columns, most = TrialColumns(parameters, metrics), self._max_column_length
        titles = ("Trial name", "status", "loc", *parameters.values(), *metrics.values())
        words = ", ".join(f"{count} {status}" for status, count in left.items())
        shown = []
        for trial in rows:
            name, status, *values = row_of(trial, columns, max_length=most)
            place = trial.location  # of its process, while it has one
            where = f"{place['node_ip']}:{place['pid']}" if "node_ip" in place and "pid" in place else ""
            shown.append((name, status, where, *values))
        return TrialTable(
            tuple(shortened(title, most) for title in titles),
            tuple(shown),
            f"... {sum(left.values())} more trials not shown ({words})" if left else "",
        )

    def _parameters(self, trials: Sequence[Trial]) -> list[str]:
        if self._parameter_columns:
            return list(self._parameter_columns)
        return list(self._searched or (sorted(trials[0].evaluated_params) if trials else ()))


@public
class CLIReporter(TuneReporterBase):
    """Prints the state of an experiment as text.

    Args:
        kwargs: The keywords of TuneReporterBase.

    Example:
        >>> reporter = CLIReporter(metric_columns=["loss"], max_report_frequency=30)
        >>> reporter.add_metric_column("accuracy", "acc")
        >>> reporter.should_report([]), reporter.should_report([])
        (True, False)
    """

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        SafeStream().print(self.text(trials, done, *sys_info))

    def text(self, trials: list[Trial], done: bool, *sys_info: str) -> str:
        """Return what `report` prints.

        Args:
            trials: All trials of the experiment so far.
            done: Whether the experiment has ended.
            sys_info: Lines about the machine, printed first.
        """
        lines = self._status(trials, *sys_info)
        if table := self._table(trials, done):
            lines += [framed(table.headers, table.rows, PSQL), table.more]
        if errors := error_table(trials, self._max_error_rows):
            before, after = error_lines(trials)
            lines += [before, framed(errors.headers, errors.rows, PSQL), errors.more, after]
        return "\n".join(filter(None, lines)) + "\n"


@public
class JupyterNotebookReporter(TuneReporterBase):
    """Shows the state of an experiment as HTML below a notebook's cell.

    Args:
        overwrite: Replace what the cell has shown so far, its own prints included.
        keywords: See TuneReporterBase.
    """

    def __init__(self, overwrite: bool = True, **keywords: Any) -> None:  # noqa: ANN401
        if not in_notebook():
            logger.warning("JupyterNotebookReporter needs a notebook, and this is none: use CLIReporter here")
        super().__init__(**keywords)
        self._overwrite = overwrite

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        from IPython.display import HTML, clear_output, display  # type: ignore[import-not-found,unused-ignore]

        if self._overwrite:
            clear_output(wait=True)
        display(HTML(self.html(trials, done, *sys_info)))

    def html(self, trials: list[Trial], done: bool, *sys_info: str) -> str:
        """Return what `report` shows.

        Args:
            trials: All trials of the experiment so far.
            done: Whether the experiment has ended.
            sys_info: Lines about the machine, printed first.
        """
        from html import escape

        status = [*self._status(trials, *sys_info), *memory_lines()]
        parts = ["<br>".join(escape(line) for line in status)]
        if table := self._table(trials, done):
            parts += [html_table(table.headers, table.rows), escape(table.more)]
        if errors := error_table(trials, self._max_error_rows):
            before, after = error_lines(trials)
            parts += [before, html_table(errors.headers, errors.rows), escape(errors.more), after]
        return "".join(f"<div>{part}</div>" for part in parts if part)


class LegacyReporter(Reporter):
    """Calls a ProgressReporter; `level` 2 also shows results, 3 also details and tables."""

    def __init__(self, reporter: ProgressReporter, *, clock: Clock, level: int, tables: bool = False) -> None:
        self._reporter = reporter
        self._clock = clock
        self._pace = ReportInterval(POLL_S)
        self._print = SafeStream().print
        self._event_lines = EventLines(self._print, clock=clock, level=level, frame=PSQL)
        configure = getattr(reporter, "set_verbosity", None)
        if configure is not None:
            configure(level, tables=tables)

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._event_lines.begin(info.metric)
        self._reporter.setup(
            start_time=self._clock.now(), total_samples=info.total, metric=info.metric, mode=info.mode
        )
        remember = getattr(self._reporter, "set_directory", None)
        if remember is not None:
            remember(info.directory, info.parameters)

    def note(self, text: str) -> None:
        self._print(text)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        began = self._clock.monotonic()
        if began >= self._pace.due:
            self._report(trials, done=False)
            self._pace.showed(began, self._clock.monotonic())

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        self._report(trials, done=True)
        if interrupted:
            self._print("\n".join(resume_lines(self.info, trials)))

    def _report(self, trials: Sequence[Trial], *, done: bool) -> None:
        if self._reporter.should_report(list(trials), done=done):
            self._event_lines.new_window()
            used = resource_line(self.info.capacity, self.info.used())
            self._reporter.report(list(trials), done, self.info.scheduler_debug(), used)


class DetailedLegacyReporter(LegacyReporter):
    """A DetailedLegacyReporter also prints results and ends of trials, from level 2 on."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        self._event_lines.reported(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._event_lines.finished(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._event_lines.errored(trial, "")


def detect_reporter(*, is_notebook: bool | None = None, **keywords: Any) -> TuneReporterBase:  # noqa: ANN401
    """Return the reporter that fits the environment, a notebook or a terminal."""
    notebook = in_notebook() if is_notebook is None else is_notebook
    return JupyterNotebookReporter(**keywords) if notebook else CLIReporter(**keywords)


def memory_lines() -> list[str]:
    """Return how full this machine's memory is; nothing where the kernel does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            known = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        total, free = known["MemTotal"] / 2**20, known["MemAvailable"] / 2**20
    except (OSError, KeyError, ValueError, IndexError):
        return []
    return [f"Memory usage on this node: {total - free:.1f}/{total:.1f} GiB"]


def _titled(columns: _Columns) -> dict[str, str]:
    return dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}


def _with_column(columns: Mapping[str, str], key: str, title: str | None, kind: str) -> dict[str, str]:
    if key in columns:
        raise ValueError(f"the {kind} column {key!r} is shown already")
    return {**columns, key: title or key}
