"""Implement `muster tune ls`: the trials of an experiment, or the experiments of a directory."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from muster.base.text import counted, money
from muster.cli.tune.best import best_of
from muster.cli.tune.columns import CONFIG, FIXED, RowColumns, filtered, ordered, own_metrics, trial_row
from muster.cli.tune.experiment import FINISHED, ExperimentView, read_experiment
from muster.cli.tune.table import cell, lay_out, notes, page_size, painted
from muster.errors import StoreError
from muster.stores.experiment.reader import experiments_below, is_experiment
from muster.stores.storage import PARAMETERS, Storage
from muster.trials.metrics import flatten
from muster.trials.spend import total_cost

EXPERIMENT_COLUMNS = ("name", "state", "trials", "best", "last_updated")
EXPERIMENT_FIXED = (*EXPERIMENT_COLUMNS, "total_trials", "metric", "mode", "path", "pid", "since", "error")
WORDS = {"TERMINATED": "done", "ERROR": "failed"}


class ListOptions(Struct, frozen=True, kw_only=True):
    """The rows and columns that the user asked for."""

    filters: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    descending: bool = False
    limit: int | None = None
    active_first: bool = False  # unless an order is asked for


class TrialListing(Struct, frozen=True, kw_only=True):
    """Holds rows in the requested order, and the columns to show."""

    rows: list[Mapping[str, Any]]
    columns: tuple[str, ...]
    passing: int  # rows before the limit
    total: int
    experiment: ExperimentView | None = None  # None: the rows are experiments

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Return the columns shown, then all others that a row has."""
        return tuple(dict.fromkeys(chain(self.columns, *self.rows)))

    @property
    def is_running(self) -> bool:
        if self.experiment is None:
            return any(row.get("state") == "running" for row in self.rows)
        return self.experiment.writer is not None


def listing(path: str, choice: ListOptions) -> TrialListing:
    """Read the directory once and selects rows and columns."""
    place = os.path.expanduser(path)
    if "://" not in place and os.path.isdir(place) and not is_experiment(place):
        below = experiments_below(place)
        if below:
            rows = [_experiment_row(each) for each in below]
            return _chosen(rows, choice, EXPERIMENT_FIXED, EXPERIMENT_COLUMNS, None)
    experiment = read_experiment(path)
    rows = [trial_row(trial, experiment.trial_path(trial)) for trial in experiment.trials]
    return _chosen(rows, choice, FIXED, default_columns(experiment, rows), experiment)


def default_columns(experiment: ExperimentView, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return id, state, progress, metrics and the searched parameters."""
    searched = dict.fromkeys(
        key for trial in experiment.trials for key in flatten(dict(trial.evaluated_params))
    )
    metrics, parameters = own_metrics(rows, experiment.metric), (f"{CONFIG}{key}" for key in searched)
    return ("trial_id", "status", "training_iteration", "time_total_s", *metrics, *parameters)


def _chosen(
    rows: Sequence[Mapping[str, Any]],
    choice: ListOptions,
    fixed: Sequence[str],
    default: Sequence[str],
    experiment: ExperimentView | None,
) -> TrialListing:
    columns = RowColumns(rows, fixed)
    shown = columns.asked(choice.columns, "--columns") or tuple(default)
    passing = filtered(rows, choice.filters, columns)
    order = columns.asked(choice.sort, "--sort")
    if choice.active_first and not order:
        passing.sort(key=lambda row: row.get("status") in FINISHED)
    passing = ordered(passing, order, descending=choice.descending)
    kept = passing[: choice.limit] if choice.limit is not None else passing
    return TrialListing(
        rows=kept, columns=shown, passing=len(passing), total=len(rows), experiment=experiment
    )


def _experiment_row(path: str) -> dict[str, Any]:
    """An experiment that cannot be read is listed as such and does not hide the others."""
    try:
        experiment = read_experiment(path)
    except StoreError as error:
        return {"name": os.path.basename(path), "path": path, "state": "unreadable", "error": str(error)}
    return experiment_row(experiment)


def experiment_row(experiment: ExperimentView) -> dict[str, Any]:
    """Return the columns of an experiment."""
    best = best_of(experiment) if experiment.metric and experiment.mode else []
    writer = experiment.writer
    return {
        "name": experiment.name,
        "path": experiment.address,
        "state": experiment.state,
        "pid": None if writer is None else writer.pid,
        "since": None if writer is None else writer.since,
        "total_trials": len(experiment.trials),
        "trials": dict(experiment.counts),
        "metric": experiment.metric,
        "mode": experiment.mode,
        "best": best[0].value if best else None,
        "last_updated": experiment.updated_at,
    }


def as_record(found: TrialListing, *, chosen: bool) -> dict[str, Any]:
    """Return the listing for --json; with --columns only those, else every column that a row has."""
    rows = [{name: row.get(name) for name in found.columns} if chosen else dict(row) for row in found.rows]
    if found.experiment is None:
        return {"experiments": rows}
    return {"experiment": experiment_row(found.experiment), "trials": rows}


def as_text(found: TrialListing, *, colour: bool) -> Iterator[str]:
    """Yield the page, line by line."""
    if found.experiment is not None:
        yield from heading(found.experiment, colour=colour)
        yield ""
    rows = found.rows
    if found.experiment is None:  # counts become the text of one cell: `10 done, 2 failed`
        counts = [(row.get("trials") or {}).items() for row in rows]
        cells = [
            ", ".join(f"{n} {WORDS.get(status, status.lower())}" for status, n in each) for each in counts
        ]
        rows = [{**row, "trials": text or None} for row, text in zip(rows, cells, strict=True)]
    width = page_size()[0]
    remarks: list[str] = []
    if rows:
        layout = lay_out(rows, found.columns, width, colour=colour)
        yield from layout.lines
        remarks += notes(layout)
    if found.passing < found.total:
        remarks.append(f"{found.passing:,} of {found.total:,} pass the filter.")
    if len(found.rows) < found.passing:
        remarks.append(f"{len(found.rows):,} of {found.passing:,} are shown (--limit).")
    for note in remarks:
        yield from textwrap.wrap(f"note: {note}", width, break_long_words=False, break_on_hyphens=False)
    if found.experiment is None:
        yield from (f"{row['name']}: {row['error']}" for row in found.rows if row.get("error"))


def heading(experiment: ExperimentView, *, colour: bool) -> Iterator[str]:
    """Yield the experiment's name and state, its number of trials and the best value so far."""
    state = painted(experiment.state, experiment.state, colour=colour)
    writer = "" if experiment.writer is None else f" ({experiment.writer})"
    end = f", ended by its {experiment.ended_by}" if experiment.ended_by else ""
    yield f"{experiment.name}: {state}{writer}{end}"
    cost = total_cost(trial.cost_usd for trial in experiment.trials)
    size = sum(Storage(experiment.path, experiment.filesystem).sizes(PARAMETERS).values())
    texts = "" if cost is None else f"; cost {money(round(cost, 4))}", f"; parameters {size / 1e6:.1f} MB"
    yield counts_text(experiment.counts) + texts[0] + (texts[1] if size else "")
    if experiment.metric and experiment.mode:
        best = best_of(experiment)
        value = f"{cell('', best[0].value)} by {best[0].trial.trial_id}" if best else "not reported yet"
        yield f"best {experiment.metric} ({experiment.mode}): {value}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the number of trials by status, such as `12 trials: 10 TERMINATED, 2 ERROR`."""
    parts = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return f"{counted(sum(counts.values()), 'trial')}{': ' if parts else ''}{parts}"
