"""`muster tune show PATH TRIAL`: one trial told at length."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from muster.cli.tune.best import config_lines
from muster.cli.tune.experiment import FINISHED, Experiment
from muster.cli.tune.show import error_file, failure_record, pairs, section
from muster.cli.tune.table import lay_out, moment, page_size, painted
from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import flat_row

TOLD = ("training_iteration", "time_total_s", "time_this_iter_s", "date", "hostname", "pid")


def find_trial(experiment: Experiment, asked: str) -> TrialSummary:
    """By id, name, directory, or a unique end of the id; ConfigError that names near ones."""
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
    raise ConfigError(f"{experiment.path}: no trial {asked!r}; {hint}")


def trial_lines(experiment: Experiment, trial: TrialSummary, *, colour: bool) -> Iterator[str]:
    """Config, last result, checkpoints, failures, files."""
    status = painted(trial.status, trial.status, colour=colour)
    yield f"{trial.trial_name or trial.trial_id}: {status}, {_n(trial.reports, 'result')}{_tries(trial)}"
    yield f"in {experiment.trial_path(trial)}"
    times = {"created": trial.created_at, "started": trial.started_at, "ended": trial.ended_at}
    told = ", ".join(f"{what} {moment(at)}" for what, at in times.items() if at is not None)
    yield from ([told] if told else [])
    yield from section("Config", config_lines(trial.config))
    yield from section("Last result", _result_lines(trial.result))
    yield from section("Checkpoints", _checkpoint_lines(experiment, trial))
    yield from section("Failures", _trial_failure_lines(experiment, trial))
    yield from section("Files", _file_lines(experiment, trial))


def trial_record(experiment: Experiment, trial: TrialSummary) -> dict[str, Any]:
    """For --json."""
    return {
        "trial_id": trial.trial_id,
        "trial_name": trial.trial_name,
        "status": trial.status,
        "experiment_tag": trial.experiment_tag,
        "path": experiment.trial_path(trial),
        "config": dict(trial.config),
        "evaluated_params": dict(trial.evaluated_params),
        "result": dict(trial.result),
        "reports": trial.reports,
        "starts": trial.starts,
        "failures": trial.failures,
        "failure": failure_record(trial) if trial.failure else None,
        "checkpoints": _checkpoints(experiment, trial),
        "files": _files(experiment, trial),
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "reported_at": trial.reported_at,
        "ended_at": trial.ended_at,
    }


def _trial_failure_lines(experiment: Experiment, trial: TrialSummary) -> Iterator[str]:
    if trial.failure is None and not trial.failures:
        return
    yield f"{_n(trial.failures, 'failure')}, {_n(trial.starts, 'start')}"
    if trial.failure is not None:
        yield f"the last one ({trial.failure.kind.value}):"
        yield from (f"  {line}" for line in failure_record(trial)["traceback"].splitlines())
    yield from (f"all of them: {file}" for file in error_file(experiment, trial))


def _result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What the user reported, then how far and where; the rest of what we fill in is said to be in --json."""
    flat = flat_row({str(key): value for key, value in result.items() if key != "config"})
    own = {key: value for key, value in flat.items() if key not in AUTO_RESULT_KEYS}
    told = {key: flat[key] for key in TOLD if key in flat}
    yield from pairs({**own, **told})
    if flat:
        yield "(--json has all keys)"


def _checkpoints(experiment: Experiment, trial: TrialSummary) -> list[dict[str, Any]]:
    """Those on disk, oldest first, with the numbers they were reported with."""
    from muster.tune.analysis.result_files import TrialFolder

    folder = TrialFolder(experiment.trial_path(trial), experiment.filesystem)
    if not folder.exists():
        return []

    def rows() -> list[dict[str, Any]]:
        try:
            return folder.rows()
        except (FileNotFoundError, ValueError):
            return []

    newest = trial.checkpoint
    known = {} if newest is None else {os.path.basename(newest.path): dict(newest.metrics)}
    found = []
    for checkpoint, metrics in folder.checkpoints(rows):
        name = os.path.basename(checkpoint.path)
        told = metrics or known.get(name, {})
        own = {key: value for key, value in told.items() if key not in AUTO_RESULT_KEYS}
        found.append(
            {
                "name": name,
                "path": checkpoint.path,
                "training_iteration": told.get("training_iteration"),
                "metrics": own,
                "is_newest": newest is not None and name in known,
            }
        )
    return found


def _checkpoint_lines(experiment: Experiment, trial: TrialSummary) -> Iterator[str]:
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


def _files(experiment: Experiment, trial: TrialSummary) -> list[str]:
    from muster.stores.storage import Storage

    storage = Storage(experiment.trial_path(trial), experiment.filesystem)
    return (
        [name for name in storage.listing() if not name.startswith("checkpoint_")] if storage.exists() else []
    )


def _file_lines(experiment: Experiment, trial: TrialSummary) -> Iterator[str]:
    return iter(_files(experiment, trial))


def _tries(trial: TrialSummary) -> str:
    return f", {_n(trial.starts, 'start')}" if trial.starts > 1 or trial.status not in FINISHED else ""


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
