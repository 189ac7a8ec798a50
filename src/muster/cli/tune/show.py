"""`muster tune show PATH`: an experiment told at length. tune_trial.py tells a trial."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from muster.cli.tune.best import best_of, config_lines
from muster.cli.tune.columns import last_line
from muster.cli.tune.experiment import Experiment
from muster.cli.tune.ls import experiment_row, heading
from muster.cli.tune.table import cell, duration, moment, painted
from muster.stores.experiment.summary import TrialSummary

MAX_FAILURES = 5  # told one by one; the rest is counted
ERROR_LINES = 3
NOTE_FILE = "note.txt"


def experiment_lines(experiment: Experiment, *, colour: bool) -> Iterator[str]:
    """State, settings, best, time and failures."""
    yield from heading(experiment, colour=colour)
    yield f"in {experiment.address}"
    yield from _next_step(experiment)
    yield from section("Settings", _settings_lines(experiment))
    yield from section("Best", _best_lines(experiment))
    yield from section("Time", _time_lines(experiment))
    yield from section("Failures", _failure_lines(experiment, colour=colour))
    yield from section("Note", _note_lines(experiment))


def experiment_record(experiment: Experiment) -> dict[str, Any]:
    """For --json."""
    return {
        **experiment_row(experiment),
        "settings": dict(experiment.settings),
        "time": times(experiment),
        "failures": [
            {**failure_record(trial), "trial_id": trial.trial_id, "path": experiment.trial_path(trial)}
            for trial in _failed(experiment)
        ],
    }


def section(title: str, lines: Iterator[str]) -> Iterator[str]:
    """A heading and its lines; nothing at all when there are none."""
    for position, line in enumerate(lines):
        if position == 0:
            yield ""
            yield title
        yield f"  {line}"


def _next_step(experiment: Experiment) -> Iterator[str]:
    if experiment.state in ("interrupted", "unfinished"):
        yield f"To go on: muster tune resume {experiment.address}"


def _settings_lines(experiment: Experiment) -> Iterator[str]:
    return pairs({key: value for key, value in experiment.settings.items() if value is not None})


def _best_lines(experiment: Experiment) -> Iterator[str]:
    found = best_of(experiment) if experiment.metric and experiment.mode else []
    if not found:
        return
    trial = found[0].trial
    yield f"{experiment.metric} = {cell('', found[0].value)} by trial {trial.trial_id}, with"
    yield from config_lines(trial.config)
    if trial.checkpoint is not None:
        yield f"checkpoint: {below(experiment, trial.checkpoint.path)}"


def times(experiment: Experiment) -> dict[str, Any]:
    """Where the time went, in seconds."""
    began, until = experiment.started_at, experiment.updated_at
    spans = {trial.trial_id: float(trial.result.get("time_total_s") or 0.0) for trial in experiment.trials}
    waits = [
        trial.started_at - trial.created_at
        for trial in experiment.trials
        if trial.started_at is not None and trial.created_at is not None and trial.starts == 1
    ]
    wall = None if began is None or until is None else until - began
    longest = max(spans, key=lambda key: spans[key], default=None)
    return {
        "from": began,
        "to": until,
        "wall_s": wall,
        "trials_s": sum(spans.values()),
        "at_a_time": sum(spans.values()) / wall if wall else None,
        "mean_wait_s": sum(waits) / len(waits) if waits else None,
        "longest_trial": longest,
        "longest_s": spans[longest] if longest is not None else None,
    }


def _time_lines(experiment: Experiment) -> Iterator[str]:
    found = times(experiment)
    if found["wall_s"] is None:
        return
    yield f"{moment(found['from'])} to {moment(found['to'])}: {duration(found['wall_s'])}"
    yield f"trials trained for {duration(found['trials_s'])} in sum, {found['at_a_time'] or 0:.2g} at a time"
    if found["longest_s"]:
        yield f"longest: {found['longest_trial']}, {duration(found['longest_s'])}"
    if found["mean_wait_s"] is not None:
        yield f"a trial waited {duration(found['mean_wait_s'])} for its process, on average"


def _failed(experiment: Experiment) -> list[TrialSummary]:
    return [trial for trial in experiment.trials if trial.failure is not None or trial.status == "ERROR"]


def failure_record(trial: TrialSummary) -> dict[str, Any]:
    failure = trial.failure
    text = "" if failure is None else failure.traceback or failure.message
    return {
        "kind": None if failure is None else failure.kind.value,
        "error": last_line(text),
        "traceback": text,
    }


def _failure_lines(experiment: Experiment, *, colour: bool) -> Iterator[str]:
    failed = _failed(experiment)
    for trial in failed[:MAX_FAILURES]:
        told = failure_record(trial)
        yield f"{painted(trial.trial_id, 'ERROR', colour=colour)}: {told['kind'] or 'failed'}"
        yield from (f"  {line}" for line in _last_lines(told["traceback"]))
        yield from (f"  see {file}" for file in error_file(experiment, trial))
    if len(failed) > MAX_FAILURES:
        command = f"muster tune ls {experiment.address} --filter 'status == ERROR' --columns trial_id,error"
        yield f"... and {len(failed) - MAX_FAILURES:,} more: {command}"


def _last_lines(traceback: str) -> list[str]:
    """Where it was raised and what it was, without the marks under the code."""
    telling = [line for line in traceback.splitlines() if line.strip(" ^~")]
    return [line.strip() for line in telling[-ERROR_LINES:]]


def error_file(experiment: Experiment, trial: TrialSummary) -> list[str]:
    place = f"{experiment.trial_path(trial)}/error.txt"
    return [below(experiment, place)] if os.path.isfile(place) else []


def _note_lines(experiment: Experiment) -> Iterator[str]:
    try:
        with open(os.path.join(experiment.path, NOTE_FILE), encoding="utf-8") as stream:
            yield from stream.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return


def pairs(values: Mapping[str, Any]) -> Iterator[str]:
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        yield f"{key.ljust(width)}  {cell(key, value)}"


def below(experiment: Experiment, path: str) -> str:
    """Shorter when it lies in the experiment."""
    prefix = f"{experiment.path.rstrip('/')}/"
    return path[len(prefix) :] if path.startswith(prefix) else path
