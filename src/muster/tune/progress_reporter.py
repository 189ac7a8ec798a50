"""Defines Ray's progress reporters, CLIReporter and JupyterNotebookReporter, and what calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock, SystemClock
from muster.errors import public
from muster.tune.reporting import legacy as text
from muster.tune.reporting.formats import SafeStream, shortened
from muster.tune.reporting.periodic import ReportInterval
from muster.tune.reporting.reporter import Reporter, RunInfo, in_notebook
from muster.tune.reporting.summary import error_file, resume_lines
from muster.tune.reporting.tables import KNOWN_METRICS, PSQL, best_first, fair_choice, framed, html_table

if TYPE_CHECKING:
    from muster.trials.model import Trial

logger = logging.getLogger(__name__)

PER_TRIAL_S = 5.0  # between two lines about the same trial
POLL_S = 0.25  # between two questions to `should_report`
_Columns = Mapping[str, str] | Sequence[str]


class ProgressReporter:
    """A ProgressReporter shows an experiment periodically; override `should_report` and `report`."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: object,  # what later versions may add
    ) -> None:
        """Called once, before the first trial."""

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Returns whether to report now; called several times a second."""
        raise NotImplementedError

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Shows the state. `sys_info`: the scheduler's own description, and the resources in use."""
        raise NotImplementedError


@public
class TuneReporterBase(ProgressReporter):
    """A TuneReporterBase holds what both reporters share: columns, rows, and when to report.

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
        """Sets what the constructor was not given."""
        ran_s = 0.0 if start_time is None else self._clock.now() - start_time
        self._began = self._clock.monotonic() - ran_s
        self._total_samples = self._total_samples or total_samples
        self._metric, self._mode = self._metric or metric, self._mode or mode

    def set_verbosity(self, level: int, *, tables: bool = False) -> None:
        """Sets the level: 1 no tables, 2 a table at the end, 3 always; `tables` overrides it with always."""
        self._level, self._tables = level, tables

    def set_directory(self, directory: str, searched: Sequence[str]) -> None:
        """Sets where results go, and which parameters are searched."""
        self._directory, self._searched = directory, tuple(searched)

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Returns True when `max_report_frequency` seconds have passed, and at the end."""
        at = self._clock.monotonic()
        if not done and at - self._last_report < self._max_report_frequency:
            return False
        self._last_report = at
        return True

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Shows one more key of results; ValueError when it is shown already."""
        columns = dict(KNOWN_METRICS) if self._metric_columns is None else self._metric_columns
        self._metric_columns = _with_column(columns, metric, representation, "metric")

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Shows one more key of the config; ValueError when it is shown already."""
        columns = self._parameter_columns or {}
        self._parameter_columns = _with_column(columns, parameter, representation, "parameter")

    # What is shown

    def _status(self, trials: Sequence[Trial], *sys_info: str) -> list[str]:
        ran_s = self._clock.monotonic() - self._began
        lines = ["== Status ==", text.time_text(self._clock.now(), ran_s), *filter(None, sys_info)]
        if best := text.best_text(trials, self._metric, self._mode, self._parameters(trials)):
            lines.append(best)
        if directory := self._directory or (trials[0].experiment_dir if trials else ""):
            lines.append(f"Result logdir: {directory}")
        lines.append(text.count_text(trials, self._total_samples))
        return lines

    def _shows_table(self, done: bool) -> bool:
        if not done and self._print_intermediate_tables is not None:
            return self._print_intermediate_tables
        return self._tables or self._level >= (2 if done else 3)

    def _table(self, trials: Sequence[Trial], done: bool) -> tuple[list[str], list[tuple[str, ...]], str]:
        rows, left = fair_choice(self._sorted(trials), float("inf") if done else self._max_progress_rows)
        parameters = self._parameter_columns or {key: key for key in self._parameters(trials)}
        metrics = self._metrics(rows)
        titles = ("Trial name", "status", "loc", *parameters.values(), *metrics.values())
        headers = [shortened(title, self._max_column_length) for title in titles]
        shown = [text.trial_row(t, list(parameters), list(metrics), self._max_column_length) for t in rows]
        return headers, shown, text.left_out_text(left)

    def _parameters(self, trials: Sequence[Trial]) -> list[str]:
        if self._parameter_columns:
            return list(self._parameter_columns)
        return list(self._searched or (sorted(trials[0].evaluated_params) if trials else ()))

    def _metrics(self, rows: Sequence[Trial]) -> dict[str, str]:
        """Returns the chosen metrics; else the usual ones that occur, the optimised one, and a few others."""
        if self._metric_columns is not None:
            return dict(self._metric_columns)
        there = {
            key: title
            for key, title in KNOWN_METRICS.items()
            if any(key in trial.last_result for trial in rows)
        }
        others = [self._metric] if self._metric else []
        others += text.inferred_metrics(rows, self._infer_limit)
        added = [key for key in dict.fromkeys(others) if key not in there][: self._infer_limit]
        return {**there, **{key: key for key in added}}

    def _sorted(self, trials: Sequence[Trial]) -> list[Trial]:
        if not self._sort_by_metric or self._metric is None or self._mode is None:
            return list(trials)
        return best_first(trials, self._metric, self._mode)

    def _errors(self, trials: Sequence[Trial]) -> tuple[str, list[tuple[str, ...]]]:
        failed = [trial for trial in trials if trial.num_failures or trial.status == "ERROR"]
        shown = failed[: self._max_error_rows]
        more = f" ({len(failed) - len(shown)} more not shown)" if len(failed) > len(shown) else ""
        rows: list[tuple[str, ...]] = [
            (str(trial), str(trial.num_failures), error_file(trial)) for trial in shown
        ]
        return f"Number of errored trials: {len(failed)}{more}", rows


_ERROR_HEADERS = ("Trial name", "# failures", "error file")


@public
class CLIReporter(TuneReporterBase):
    """A CLIReporter prints the state of an experiment as text; see TuneReporterBase for the keywords.

    Example:
        >>> reporter = CLIReporter(metric_columns=["loss"], max_report_frequency=30)
        >>> reporter.add_metric_column("accuracy", "acc")
        >>> reporter.should_report([]), reporter.should_report([])
        (True, False)
    """

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        SafeStream().print(self.text(trials, done, *sys_info))

    def text(self, trials: list[Trial], done: bool, *sys_info: str) -> str:
        """Returns what `report` prints."""
        lines = self._status(trials, *sys_info)
        if trials and self._shows_table(done):
            headers, rows, more = self._table(trials, done)
            lines += [framed(headers, rows, PSQL), *([more] if more else [])]
        title, errors = self._errors(trials)
        if errors:
            lines += [title, framed(_ERROR_HEADERS, errors, PSQL)]
        return "\n".join(lines) + "\n"


@public
class JupyterNotebookReporter(TuneReporterBase):
    """A JupyterNotebookReporter shows the state of an experiment as HTML below a notebook's cell.

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
        """Returns what `report` shows."""
        from html import escape

        status = [*self._status(trials, *sys_info), *memory_lines()]
        parts = ["<br>".join(escape(line) for line in status)]
        if trials and self._shows_table(done):
            headers, rows, more = self._table(trials, done)
            parts += [html_table(headers, rows), escape(more)]
        title, errors = self._errors(trials)
        if errors:
            parts += [escape(title), html_table(_ERROR_HEADERS, errors)]
        return "".join(f"<div>{part}</div>" for part in parts if part)


class LegacyReporter(Reporter):
    """A LegacyReporter calls a ProgressReporter; `level` 2 also shows results, 3 also details and tables."""

    def __init__(self, reporter: ProgressReporter, *, clock: Clock, level: int, tables: bool = False) -> None:
        self._reporter = reporter
        self._clock = clock
        self._pace = ReportInterval(POLL_S)
        self._level = level
        self._stream = SafeStream()
        self._reported_at: dict[str, float] = {}
        configure = getattr(reporter, "set_verbosity", None)
        if configure is not None:
            configure(level, tables=tables)

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._reporter.setup(
            start_time=self._clock.now(),
            total_samples=info.total,
            metric=info.metric,
            mode=info.mode,
        )
        remember = getattr(self._reporter, "set_directory", None)
        if remember is not None:
            remember(info.directory, info.parameters)

    def note(self, text: str) -> None:
        self._stream.print(text)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        began = self._clock.monotonic()
        if began >= self._pace.due:
            if self._reporter.should_report(trials, done=False):
                self._report(trials, done=False)
            self._pace.showed(began, self._clock.monotonic())

    def end(self, *, interrupted: bool, trials: Sequence[Trial]) -> None:
        if self._reporter.should_report(list(trials), done=True):
            self._report(trials, done=True)
        if interrupted:
            self._stream.print("\n".join(resume_lines(self.info, trials)))

    def _report(self, trials: Sequence[Trial], *, done: bool) -> None:
        used = text.resource_text(self.info.capacity, self.info.used())
        self._reporter.report(list(trials), done, self.info.scheduler_debug(), used)


class DetailedLegacyReporter(LegacyReporter):
    """A DetailedLegacyReporter also prints results, from level 2 on, every few seconds per running trial."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        at = self._clock.monotonic()
        if at - self._reported_at.get(trial.trial_id, float("-inf")) >= PER_TRIAL_S:
            self._reported_at[trial.trial_id] = at
            self._print_result(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._reported_at.pop(trial.trial_id, None)
        self._print_result(trial, trial.last_result, end=" This trial completed.")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._reported_at.pop(trial.trial_id, None)
        self._print_result(trial, trial.last_result, end=" This trial errored.")

    def _print_result(self, trial: Trial, result: Mapping[str, Any], end: str = "") -> None:
        if self._level >= 3:
            self._stream.print(text.trial_details(trial, result, end.strip()))
        else:
            self._stream.print(
                text.trial_sentence(trial, result, self.info.metric, self.info.parameters) + end
            )


def detect_reporter(*, is_notebook: bool | None = None, **keywords: Any) -> TuneReporterBase:  # noqa: ANN401
    """Returns the reporter that fits the environment, a notebook or a terminal."""
    notebook = in_notebook() if is_notebook is None else is_notebook
    return JupyterNotebookReporter(**keywords) if notebook else CLIReporter(**keywords)


def memory_lines() -> list[str]:
    """Returns how full this machine's memory is; nothing where the kernel does not report it."""
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
