"""Print an experiment as lines for logs and pipes: no colours, no cursor, nothing is ever overwritten.

There is one line per finished or failed trial, a heartbeat every 30 s, and tables at the end. Of each kind of
event only the first few in every window get a line; the rest is counted and reported as one line when the
window ends, so that the log of 20,000 quick trials stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from muster.base.clock import Clock
from muster.base.text import moment
from muster.trials.metrics import flatten
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.reporting import summary
from muster.tune.reporting.formats import SafeStream, amount, assignments, brief, cell, detail, duration, rate
from muster.tune.reporting.periodic import ExperimentSnapshot, PeriodicReporter, rows_of
from muster.tune.reporting.reporter import RunInfo
from muster.tune.reporting.tables import (
    BoxCharacters,
    columns_for,
    frame_for,
    framed,
    listed,
    parameters_of,
    table_of,
)
from muster.tune.reporting.tally import error_line, lookup

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint
    from muster.trials.model import Trial

HEARTBEAT_S = 30.0
LINES_PER_WINDOW = {1: 20, 2: 100, 3: 300}
_KINDS = {
    "finished": "trials finished",
    "errored": "trials errored",
    "retried": "failures that are tried again",
    "started": "trials started",
    "result": "results",
    "checkpoint": "checkpoints",
}
HIDDEN = frozenset(
    (
        *("config", "date", "done", "hostname", "iterations_since_restore", "node_ip", "pid"),
        *("time_since_restore", "timestamp", "trial_id", "experiment_tag", "should_checkpoint"),
    )
)


class EventReporter(PeriodicReporter):
    """Prints a line when a trial completes or fails; subclasses set `_event_lines`."""

    _event_lines: EventLines

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.completed(trial)
        self._event_lines.finished(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.failed(trial)
        message = self._tally.failure_message(trial) if self.prints_errors else ""
        self._event_lines.errored(trial, message)


class DetailedEventReporter(EventReporter):
    """A DetailedEventReporter prints, from `verbose=2` on, starts and results too."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.started(trial)
        self._event_lines.started(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: object
    ) -> None:
        self._event_lines.reported(trial, result)


class PlainReporter(EventReporter):
    """Prints what `verbose=1` shows where there is no terminal."""

    def __init__(self, stream: TextIO, *, clock: Clock, level: int = 1) -> None:
        super().__init__(clock=clock, period_s=HEARTBEAT_S)
        self._print = SafeStream(stream).print
        self._level = level
        self._frame = frame_for(getattr(stream, "encoding", None))
        self._event_lines = EventLines(self._print, clock=clock, level=level, frame=self._frame)
        self._is_first = True

    def begin(self, info: RunInfo) -> None:
        super().begin(info)
        self._is_first = True
        self._event_lines.begin(info.metric)
        self._print(configuration(info, self._frame))

    def note(self, text: str) -> None:
        self._print(text)

    def show(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial]) -> None:
        if self._is_first:  # nothing has happened yet; the configuration was shown a moment ago
            self._is_first = False
            return
        self._event_lines.new_window()
        self._print("\n" + heartbeat(snapshot))
        if self._level >= 2 and trials:
            self._print(_drawn(snapshot, *rows_of(snapshot, trials), self._frame))

    def conclude(self, snapshot: ExperimentSnapshot, trials: Sequence[Trial], *, interrupted: bool) -> None:
        self._event_lines.new_window()
        text = conclusion(snapshot, trials, self._frame, interrupted=interrupted)
        self._print("\n" + text)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._tally.recovered(trial)
        if self.prints_errors:
            self._event_lines.retried(trial, self._tally.failure_message(trial))


class DetailedPlainReporter(DetailedEventReporter, PlainReporter):
    """A DetailedPlainReporter prints, from `verbose=2` on, starts, results and checkpoints too."""

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: object
    ) -> None:
        self._event_lines.checkpointed(trial, checkpoint)


class EventLines:
    """Prints a line per event of a trial; `level` is RunConfig.verbose."""

    def __init__(
        self, print_line: Callable[[str], None], *, clock: Clock, level: int, frame: BoxCharacters
    ) -> None:
        self._print = print_line
        self._clock = clock
        self._level = level
        self._frame = frame
        self._limit = LINES_PER_WINDOW[level]
        self._counts = dict.fromkeys(_KINDS, 0)
        self._began = clock.monotonic()
        self.metric: str | None = None

    def begin(self, metric: str | None) -> None:
        self._began, self.metric = self._clock.monotonic(), metric

    def started(self, trial: Trial) -> None:
        if not self._is_within_limit("started"):
            return
        if self._level >= 3 and trial.config:
            rows = [(key, detail(value)) for key, value in flatten(trial.config).items()]
            table = listed((f"Trial {trial} config",), rows, self._frame)
            self._print(f"Trial {trial} started with configuration:\n{table}")
        else:
            self._print(f"Trial {trial} started {self._when()}")

    def finished(self, trial: Trial) -> None:
        if not self._is_within_limit("finished"):
            return
        iterations = trial.last_result.get("training_iteration", 0)
        line = f"Trial {trial} completed after {iterations} iterations {self._when()}"
        self._print(f"{line}{self._score(trial.last_result)}")
        if self._level >= 3:
            self._print(result_table(trial, trial.last_result, self._frame))

    def errored(self, trial: Trial, message: str) -> None:
        if not self._is_within_limit("errored"):
            return
        iterations = trial.last_result.get("training_iteration", 0)
        lines = [f"Trial {trial} errored after {iterations} iterations {self._when()}"]
        if message:
            lines.append(f"  {error_line(message)}")
        if file := summary.error_file(trial):
            lines.append(f"Error file: {file}")
        self._print("\n".join(lines))

    def retried(self, trial: Trial, message: str) -> None:
        if self._is_within_limit("retried"):
            self._print(f"Trial {trial} failed and is tried again: {error_line(message)}")

    def reported(self, trial: Trial, result: Mapping[str, Any]) -> None:
        if not self._is_within_limit("result"):
            return
        iteration = result.get("training_iteration", 0)
        self._print(f"Trial {trial} finished iteration {iteration} {self._when()}{self._score(result)}")
        if self._level >= 3:
            self._print(result_table(trial, result, self._frame))

    def checkpointed(self, trial: Trial, checkpoint: Checkpoint) -> None:
        if self._is_within_limit("checkpoint"):
            iteration = trial.last_result.get("training_iteration", 0)
            where = f"({'local' if getattr(checkpoint, '_is_local', True) else 'remote'}){checkpoint.path}"
            self._print(f"Trial {trial} saved a checkpoint for iteration {iteration} at: {where}")

    def new_window(self) -> None:
        """Print in one line what was left out, and start counting from 0."""
        left = {kind: count - self._limit for kind, count in self._counts.items() if count > self._limit}
        self._counts = dict.fromkeys(_KINDS, 0)
        if left:
            self._print("... " + ", ".join(f"{count:,} more {_KINDS[kind]}" for kind, count in left.items()))

    def _is_within_limit(self, kind: str) -> bool:
        self._counts[kind] += 1
        return self._counts[kind] <= self._limit

    def _when(self) -> str:
        running_s = self._clock.monotonic() - self._began
        return f"at {moment(self._clock.now())}. Total running time: {duration(running_s)}"

    def _score(self, result: Mapping[str, Any]) -> str:
        if self.metric is None:
            return ""
        value = lookup(result, self.metric)
        return "" if value is None else f", {self.metric}={brief(value)}"


def configuration(info: RunInfo, frame: BoxCharacters) -> str:
    rows = [("Search algorithm", info.searcher), ("Scheduler", info.scheduler)]
    rows.append(("Number of trials", "until stopped" if info.total is None else f"{info.total}"))
    if info.metric is not None:
        goal = f"{info.mode} {info.metric}" if info.mode else f"{info.metric}, without a mode: no best trial"
        rows.append(("Objective", goal))
    if info.time_budget_s is not None:
        rows.append(("Time budget", duration(info.time_budget_s)))
    opening = "Continuing" if info.is_resumed else "Results go to"
    shown = listed(("Configuration for experiment", info.name), rows, frame)
    return f"{shown}\n{opening}: {info.directory}"


def status_line(counts: Mapping[str, int]) -> str:
    shown = [f"{count} {status}" for status, count in counts.items() if count]
    return f"Trial status: {' | '.join(shown) or 'no trials yet'}"


def time_line(snapshot: ExperimentSnapshot) -> str:
    parts = [f"Current time: {moment(snapshot.now)}. Total running time: {duration(snapshot.elapsed_s)}"]
    if snapshot.per_second is not None:
        parts.append(f"{rate(snapshot.per_second)}")
    if snapshot.eta_s:
        parts.append(f"about {duration(snapshot.eta_s)} left")
    if cost := snapshot.info.cost():
        parts.append(cost)
    return ", ".join(parts)


def resource_line(capacity: Mapping[str, float], used: Mapping[str, float]) -> str:
    """Return CPUs and GPUs always, other resources when there are any, memory when trials request it."""
    parts = [f"{_used(used, name)}/{amount(capacity.get(name, 0))} {name}s" for name in ("CPU", "GPU")]
    for name, total in capacity.items():
        if name not in ("CPU", "GPU", "memory") or (name == "memory" and used.get(name)):
            parts.append(f"{_used(used, name)}/{amount(total)} {name}")
    return f"Logical resource usage: {', '.join(parts)}"


def heartbeat(snapshot: ExperimentSnapshot) -> str:
    trial, info = snapshot.best_trial, snapshot.info
    lines = [status_line(snapshot.counts), time_line(snapshot), resource_line(info.capacity, snapshot.used)]
    if trial is not None:
        score = f"{info.metric}={cell(snapshot.best_value)}"
        params = assignments(parameters_of(trial, info.parameters))
        lines.append(f"Current best trial: {trial.trial_id} with {score} and params={params}")
    return "\n".join(lines)


def conclusion(
    snapshot: ExperimentSnapshot, trials: Sequence[Trial], frame: BoxCharacters, *, interrupted: bool
) -> str:
    """Return the summary: counts, the best, all trials, what failed, where the files are."""
    parts = [status_line(snapshot.counts), time_line(snapshot)]
    rows, more = summary.final_rows(snapshot, trials, interrupted=interrupted)
    if rows:
        parts.append(_drawn(snapshot, rows, more, frame, interrupted))
    errors = summary.error_table(trials)
    if errors is not None:
        before, after = summary.error_lines(trials)
        parts += [before, framed(errors.headers, errors.rows, frame)]
        parts += [line for line in (errors.more, after) if line]
        parts += summary.cause_lines(snapshot)
    parts += summary.best_lines(snapshot)
    parts += summary.resume_lines(snapshot.info, trials) if interrupted else summary.where_lines(snapshot)
    return "\n".join(parts)


def result_table(trial: Trial, result: Mapping[str, Any], frame: BoxCharacters) -> str:
    """Return one result as a table: the keys that muster fills in first, then what the trial reported."""
    flat = {
        key: value
        for key, value in flatten(result).items()
        if key not in HIDDEN and not str(key).startswith("config/") and value is not None
    }
    first = [key for key in AUTO_RESULT_KEYS if key in flat]
    rows = [(key, detail(flat[key])) for key in (*first, *(key for key in flat if key not in first))]
    return listed((f"Trial {trial} result",), rows, frame)


def _drawn(
    snapshot: ExperimentSnapshot,
    rows: Sequence[Trial],
    more: str,
    frame: BoxCharacters,
    interrupted: bool = False,
) -> str:
    columns = columns_for(rows, snapshot.info.parameters, snapshot.info.metric)
    table = table_of(rows, columns, interrupted=interrupted)
    return "\n".join((framed(table.headers, table.rows, frame), *([more] if more else [])))


def _used(used: Mapping[str, float], name: str) -> str:
    value = used.get(name, 0)
    return str(float(value)) if value else "0"
