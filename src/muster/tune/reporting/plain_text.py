"""The lines and tables of the plain reporter, and of nobody's terminal: pure text, made from pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.base.text import moment
from muster.trials.results import flatten
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS
from muster.tune.reporting import summary
from muster.tune.reporting.formats import (
    amount,
    assignments,
    cell,
    detail,
    duration,
    rate,
)
from muster.tune.reporting.snapshot import ExperimentSnapshot, rows_of
from muster.tune.reporting.tables import BoxCharacters, columns_for, framed, listed, parameters_of, table_of

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.reporter import RunInfo

HIDDEN = frozenset(
    (
        *("config", "date", "done", "hostname", "iterations_since_restore", "node_ip", "pid"),
        *("time_since_restore", "timestamp", "trial_id", "experiment_tag", "should_checkpoint"),
    )
)


def configuration(info: RunInfo, frame: BoxCharacters) -> str:
    rows = [("Search algorithm", info.searcher), ("Scheduler", info.scheduler)]
    rows.append(("Number of trials", "until stopped" if info.total is None else f"{info.total}"))
    if info.metric is not None:
        rows.append(("Objective", f"{info.mode} {info.metric}"))
    if info.time_budget_s is not None:
        rows.append(("Time budget", duration(info.time_budget_s)))
    opening = "Going on with" if info.is_resumed else "Results go to"
    shown = listed(("Configuration for experiment", info.name), rows, frame)
    return f"{shown}\n{opening}: {info.directory}"


def status_line(counts: Mapping[str, int]) -> str:
    shown = [f"{count} {status}" for status, count in counts.items() if count]
    return f"Trial status: {' | '.join(shown) or 'no trials yet'}"


def time_line(picture: ExperimentSnapshot) -> str:
    parts = [f"Current time: {moment(picture.now)}. Total running time: {duration(picture.elapsed_s)}"]
    if picture.per_second is not None:
        parts.append(f"{rate(picture.per_second)}")
    if picture.eta_s:
        parts.append(f"about {duration(picture.eta_s)} left")
    return ", ".join(parts)


def resource_line(capacity: Mapping[str, float], used: Mapping[str, float]) -> str:
    """CPUs and GPUs always, other resources when there are any; memory only when somebody asks for it."""
    parts = [f"{_used(used, name)}/{amount(capacity.get(name, 0))} {name}s" for name in ("CPU", "GPU")]
    for name, total in capacity.items():
        if name not in ("CPU", "GPU", "memory") or (name == "memory" and used.get(name)):
            parts.append(f"{_used(used, name)}/{amount(total)} {name}")
    return f"Logical resource usage: {', '.join(parts)}"


def best_line(picture: ExperimentSnapshot) -> str:
    trial, info = picture.best_trial, picture.info
    if trial is None:
        return ""
    params = assignments(parameters_of(trial, info.parameters))
    return (
        f"Current best trial: {trial.trial_id} with {info.metric}={cell(picture.best_value)} and "
        f"params={params}"
    )


def heartbeat(picture: ExperimentSnapshot) -> str:
    lines = [status_line(picture.counts), time_line(picture)]
    lines.append(resource_line(picture.info.capacity, picture.used))
    if best := best_line(picture):
        lines.append(best)
    return "\n".join(lines)


def trial_table(picture: ExperimentSnapshot, trials: Sequence[Trial], frame: BoxCharacters) -> str:
    """Below a heartbeat."""
    return _drawn(picture, *rows_of(picture, trials), frame)


def conclusion(
    picture: ExperimentSnapshot, trials: Sequence[Trial], frame: BoxCharacters, *, interrupted: bool
) -> str:
    """The last words: how many, the best, all trials, what failed, where the files are."""
    parts = [status_line(picture.counts), time_line(picture)]
    rows, more = summary.final_rows(picture, trials, interrupted=interrupted)
    if rows:
        parts.append(_drawn(picture, rows, more, frame))
    errors = summary.error_table(trials)
    if errors is not None:
        before, after = summary.error_lines(trials)
        parts += [before, framed(errors.headers, errors.rows, frame)]
        parts += [line for line in (errors.more, after) if line]
    parts += summary.best_lines(picture)
    parts += summary.resume_lines(picture.info, trials) if interrupted else summary.where_lines(picture)
    return "\n".join(parts)


def result_table(trial: Trial, result: Mapping[str, Any], frame: BoxCharacters) -> str:
    """One result: the keys we fill in first, then what the trial reported."""
    flat = {key: value for key, value in flatten(result).items() if _is_shown(key) and value is not None}
    first = [key for key in AUTO_RESULT_KEYS if key in flat]
    rows = [(key, detail(flat[key])) for key in (*first, *(key for key in flat if key not in first))]
    return listed((f"Trial {trial} result",), rows, frame)


def config_table(trial: Trial, frame: BoxCharacters) -> str:
    rows = [(key, detail(value)) for key, value in flatten(trial.config).items()]
    return listed((f"Trial {trial} config",), rows, frame)


def _is_shown(key: str) -> bool:
    return key not in HIDDEN and not key.startswith("config/")


def _drawn(picture: ExperimentSnapshot, rows: Sequence[Trial], more: str, frame: BoxCharacters) -> str:
    columns = columns_for(rows, picture.info.parameters, picture.info.metric)
    table = table_of(rows, columns)
    return "\n".join((framed(table.headers, table.rows, frame), *([more] if more else [])))


def _used(used: Mapping[str, float], name: str) -> str:
    value = used.get(name, 0)
    return str(float(value)) if value else "0"
