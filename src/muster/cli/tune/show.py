"""Implement `muster tune show`: an experiment, or one of its trials, in detail."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Any

from muster.base.text import counted, duration, moment
from muster.cli.tune.best import best_of, config_lines
from muster.cli.tune.experiment import FINISHED, ExperimentView
from muster.cli.tune.ls import experiment_row, heading
from muster.cli.tune.table import cell, lay_out, page_size, painted
from muster.errors import CommandError, ConfigError
from muster.host.machine import program
from muster.host.regular_file import read_regular
from muster.stores.experiment.summary import TrialSummary
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import flat_row
from muster.tune.reporting.tally import PLACE, error_line, is_own

MAX_FAILURES = 5  # shown one by one; the rest is counted
ERROR_LINES = 3
NOTE_FILE, NOTE_BYTES = "note.txt", 100_000
TRIAL_FIELDS = (  # of --json; the rest is computed
    *("trial_id", "trial_name", "status", "experiment_tag", "config", "evaluated_params", "result"),
    *("reports", "starts", "failures", "created_at", "started_at", "reported_at", "ended_at"),
    *("why_suggested", "decision", "reason"),
)


def experiment_lines(experiment: ExperimentView, *, colour: bool) -> Iterator[str]:
    """Yield state, settings, best trial, times and failures of an experiment."""
    yield from heading(experiment, colour=colour)
    yield f"in {experiment.address}"
    if experiment.state in ("interrupted", "unfinished"):
        yield f"To continue: {experiment.resume_command}"
    settings = {key: value for key, value in experiment.settings.items() if value is not None}
    if isinstance(deadline := settings.get("deadline"), float | int):
        settings["deadline"] = moment(deadline)
    if experiment.command is not None:
        settings["command"] = " ".join(map(quote, experiment.command.template))
    yield from section("Settings", pairs(settings))
    yield from section("Best", _best_lines(experiment))
    yield from section("Time", _time_lines(experiment))
    yield from section("Failures", _failure_lines(experiment, colour=colour))
    yield from section("Note", _note_lines(experiment))


def experiment_record(experiment: ExperimentView) -> dict[str, Any]:
    """Return the experiment for --json."""
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
    """Yield a heading and its lines; nothing when there are no lines."""
    for position, line in enumerate(lines):
        if position == 0:
            yield ""
            yield title
        yield f"  {line}"


def _best_lines(experiment: ExperimentView) -> Iterator[str]:
    found = best_of(experiment) if experiment.metric and experiment.mode else []
    if not found:
        return
    trial = found[0].trial
    yield f"{experiment.metric} = {cell('', found[0].value)} by trial {trial.trial_id}, with"
    yield from config_lines(trial.config)
    if trial.checkpoint is not None:
        yield f"checkpoint: {below(experiment, trial.checkpoint.path)}"


def times(experiment: ExperimentView) -> dict[str, Any]:
    """Return where the time went, in seconds."""
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


def _time_lines(experiment: ExperimentView) -> Iterator[str]:
    found = times(experiment)
    if found["wall_s"] is None:
        return
    yield f"{moment(found['from'])} to {moment(found['to'])}: {duration(found['wall_s'])}"
    total, at_a_time = duration(found["trials_s"]), found["at_a_time"] or 0
    yield f"trials trained for {total} in total, {at_a_time:.2g} at a time"
    if found["longest_s"]:
        yield f"longest: {found['longest_trial']}, {duration(found['longest_s'])}"
    if found["mean_wait_s"] is not None:
        yield f"a trial waited {duration(found['mean_wait_s'])} for its process, on average"


def _failed(experiment: ExperimentView) -> list[TrialSummary]:
    return [trial for trial in experiment.trials if trial.failure is not None or trial.status == "ERROR"]


def failure_record(trial: TrialSummary) -> dict[str, Any]:
    """Return kind, error line and traceback of a trial's failure."""
    failure = trial.failure
    text = "" if failure is None else failure.traceback or failure.message
    return {
        "kind": None if failure is None else failure.kind.value,
        "error": error_line(text),
        "traceback": text,
    }


def _failure_lines(experiment: ExperimentView, *, colour: bool) -> Iterator[str]:
    failed = _failed(experiment)
    for trial in failed[:MAX_FAILURES]:
        failure = failure_record(trial)
        yield f"{painted(trial.trial_id, 'ERROR', colour=colour)}: {failure['kind'] or 'failed'}"
        # The user's innermost line and the error, without the marks under the code.
        traceback = failure["traceback"]
        useful = [line.strip() for line in traceback.splitlines() if line.strip(" ^~")]
        own = [at for at, line in enumerate(useful[:-1]) if (found := PLACE.match(line)) and is_own(found[1])]
        shown = [*useful[own[-1] : -1][: ERROR_LINES - 1], failure["error"]] if own else useful[-ERROR_LINES:]
        yield from (f"  {line}" for line in shown)
        yield from (f"  see {file}" for file in error_file(experiment, trial))
    if len(failed) > MAX_FAILURES:
        command = (
            f"{program()} tune ls {experiment.address} --filter 'status == ERROR' --columns trial_id,error"
        )
        yield f"... and {len(failed) - MAX_FAILURES:,} more: {command}"


def error_file(experiment: ExperimentView, trial: TrialSummary) -> list[str]:
    """Return the trial's error.txt, if there is one."""
    place = f"{experiment.trial_path(trial)}/error.txt"
    return [below(experiment, place)] if os.path.isfile(place) else []


def _note_lines(experiment: ExperimentView) -> Iterator[str]:
    try:
        note = read_regular(os.path.join(experiment.path, NOTE_FILE), beginning=NOTE_BYTES)
        yield from note.decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return


def pairs(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys and values in two columns."""
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        yield f"{key.ljust(width)}  {cell(key, value)}"


def below(experiment: ExperimentView, path: str) -> str:
    """Return a path relative to the experiment if it lies in it."""
    prefix = f"{experiment.address.rstrip('/')}/"
    return path[len(prefix) :] if path.startswith(prefix) else path


PROGRESS_KEYS = ("training_iteration", "time_total_s", "time_this_iter_s", "date", "hostname", "pid")


def find_trial(experiment: ExperimentView, asked: str) -> TrialSummary:
    """Find a trial by id, name, directory, or a unique end of the id. Raises ConfigError with near ones."""
    word = os.path.basename(asked.rstrip("/"))
    for trial in experiment.trials:
        if word in (trial.trial_id, trial.trial_name, trial.relative_logdir):
            return trial
    ending = [trial for trial in experiment.trials if trial.trial_id.endswith(word)]
    if len(ending) == 1:
        return ending[0]
    ids = [trial.trial_id for trial in experiment.trials]
    near = [trial.trial_id for trial in ending[:3]] or difflib.get_close_matches(word, ids, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(ids)}: see `muster tune ls`"
    raise ConfigError(f"{experiment.path}: no trial {asked!r}", fix=f"{hint}")


def trial_lines(experiment: ExperimentView, trial: TrialSummary, *, colour: bool) -> Iterator[str]:
    """Yield config, last result, checkpoints, failures and files of a trial."""
    status = painted(trial.status, trial.status, colour=colour)
    tries = f", {counted(trial.starts, 'start')}" if trial.starts > 1 or trial.status not in FINISHED else ""
    yield f"{trial.trial_name or trial.trial_id}: {status}, {counted(trial.reports, 'result')}{tries}"
    yield f"in {experiment.trial_path(trial)}"
    times = {"created": trial.created_at, "started": trial.started_at, "ended": trial.ended_at}
    dates = ", ".join(f"{what} {moment(at)}" for what, at in times.items() if at is not None)
    yield from ([dates] if dates else [])
    yield from ([f"suggested: {trial.why_suggested}"] if trial.why_suggested else [])
    yield from ([f"{trial.decision}: {trial.reason}"] if trial.reason else [])
    yield from section("Config", config_lines(trial.config))
    yield from section("Command", (line for line in [_command_line(experiment, trial)] if line))
    yield from section("Last result", _result_lines(trial.result))
    yield from section("Checkpoints", _checkpoint_lines(experiment, trial))
    yield from section("Failures", _trial_failure_lines(experiment, trial))
    yield from section("Files", iter(_files(experiment, trial)))


def trial_record(experiment: ExperimentView, trial: TrialSummary) -> dict[str, Any]:
    """Return the trial for --json."""
    return {
        **{name: getattr(trial, name) for name in TRIAL_FIELDS},
        "path": experiment.trial_path(trial),
        "command": _command_line(experiment, trial),
        "failure": failure_record(trial) if trial.failure else None,
        "checkpoints": _checkpoints(experiment, trial),
        "files": _files(experiment, trial),
    }


def _command_line(experiment: ExperimentView, trial: TrialSummary) -> str | None:
    """Return the command of a trial; None when it runs none, or lacks a value of it."""
    with suppress(CommandError):
        return experiment.command_line(trial) if experiment.command else None
    return None


def _trial_failure_lines(experiment: ExperimentView, trial: TrialSummary) -> Iterator[str]:
    if trial.failure is None and not trial.failures:
        return
    yield f"{counted(trial.failures, 'failure')}, {counted(trial.starts, 'start')}"
    if trial.failure is not None:
        yield f"the last one ({trial.failure.kind.value}):"
        yield from (f"  {line}" for line in failure_record(trial)["traceback"].splitlines())
    yield from (f"all of them: {file}" for file in error_file(experiment, trial))


def _result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The user's metrics come first, then progress; the other keys that muster adds are in --json."""
    flat = flat_row({str(key): value for key, value in result.items() if key != "config"})
    own = {key: value for key, value in flat.items() if key not in AUTO_RESULT_KEYS}
    progress = {key: flat[key] for key in PROGRESS_KEYS if key in flat}
    yield from pairs({**own, **progress})
    if flat:
        yield "(--json has all keys)"


def _checkpoints(experiment: ExperimentView, trial: TrialSummary) -> list[dict[str, Any]]:
    """Return the checkpoints on disk, oldest first, with the metrics they were reported with."""
    newest = "" if trial.checkpoint is None else os.path.basename(trial.checkpoint.path)
    found = []
    for checkpoint, reported in experiment.record(trial).best_checkpoints:
        name = os.path.basename(checkpoint.path)
        own = {key: value for key, value in reported.items() if key not in AUTO_RESULT_KEYS}
        found.append(
            {
                "name": name,
                "path": f"{experiment.trial_path(trial)}/{name}",
                "training_iteration": reported.get("training_iteration"),
                "metrics": own,
                "is_newest": name == newest,
            }
        )
    return found


def _checkpoint_lines(experiment: ExperimentView, trial: TrialSummary) -> Iterator[str]:
    found = _checkpoints(experiment, trial)
    if not found:
        return
    rows = [
        {"name": each["name"], "training_iteration": each["training_iteration"], **flat_row(each["metrics"])}
        for each in found
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    layout = lay_out(rows, columns, page_size()[0] - 2, colour=False)
    yield from layout.lines
    if layout.left_out:
        yield f"({', '.join(layout.left_out)} did not fit; --json has all)"


def _files(experiment: ExperimentView, trial: TrialSummary) -> list[str]:
    from muster.stores.storage import Storage

    storage = Storage(experiment.record(trial).path, experiment.filesystem)
    names = storage.listing() if storage.exists() else ()
    return [name for name in names if not name.startswith("checkpoint_")]
