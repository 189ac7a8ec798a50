"""Format the end of a run: what failed, where the files are, how to continue a run that was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.base.text import counted
from muster.tune.reporting.formats import cell, home_relative
from muster.tune.reporting.tables import TrialTable, best_first, fair_choice, more_text, parameters_of

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.reporting.periodic import ExperimentSnapshot
    from muster.tune.reporting.reporter import RunInfo

FINAL_ROWS = 100  # the files have all of them; 20,000 rows on a screen do not help
ERROR_ROWS = 20
CAUSES_SHOWN = 5
FRONT_SHOWN = 10


def resume_lines(info: RunInfo, trials: Sequence[Trial]) -> list[str]:
    """Return what a user who pressed Ctrl-C needs to know, or whose budget or deadline has ended a run."""
    finished = sum(trial.is_finished() for trial in trials)
    planned = info.total if info.total is not None else len(trials)
    if limit := info.ended_by():
        cost = f", {info.cost()}" if info.cost() else ""
        more = {"budget": "cost_budget", "deadline": "deadline"}[limit]
        again = f"tune.Tuner.restore({info.directory!r}, {more}=...).fit()"
        return [
            f"Ended by its {limit}{cost}: {finished:,} of {planned:,} trials are done, and everything is "
            "saved. To continue with more:",
            f"  in a shell:  {info.program} tune resume {shlex.quote(info.directory)} "
            f"--{more.replace('_', '-')} ...",
            f"  in Python:   {again}",
        ]
    return [
        f"Stopped early: {finished:,} of {planned:,} trials are done, and everything is saved. To continue:",
        f"  in a shell:  {info.program} tune resume {shlex.quote(info.directory)}",
        f"  in Python:   tune.Tuner.restore({info.directory!r}).fit()",
    ]


def best_lines(snapshot: ExperimentSnapshot) -> list[str]:
    """Return the best trial with all its parameters, to be copied."""
    trial, info = snapshot.best_trial, snapshot.info
    if snapshot.front:
        goals = ", ".join(f"{mode} {metric}" for metric, mode in info.objectives.items())
        names = ", ".join(str(one) for one in snapshot.front[:FRONT_SHOWN])
        more = "" if len(snapshot.front) <= FRONT_SHOWN else ", ..."
        return [f"Pareto front ({goals}): {counted(len(snapshot.front), 'trial')}", f"  {names}{more}"]
    if trial is None:
        if not info.metric or info.mode:
            return []
        return [f"No best trial by {info.metric!r}: set TuneConfig(mode='min' or 'max')"]
    return [
        f"Best trial: {trial} with {info.metric}={cell(snapshot.best_value)}",
        f"  parameters: {parameters_of(trial, info.parameters)!r}",
    ]


def where_lines(snapshot: ExperimentSnapshot, home: str = "") -> list[str]:
    """Return where the files are, and how to look at them."""
    place = home_relative(shlex.quote(snapshot.info.directory), home)
    return [f"Results: {place}", f"  look at them:  {snapshot.info.program} tune show {place}"]


def final_rows(
    snapshot: ExperimentSnapshot,
    trials: Sequence[Trial],
    *,
    max_rows: int = FINAL_ROWS,
    interrupted: bool = False,
) -> tuple[list[Trial], str]:
    """Return trials that ran, the best first within their status; of very many some of each status."""
    tried = [trial for trial in trials if trial.status != "PENDING"] if interrupted else trials
    ranked = best_first(tried, snapshot.info.metric, snapshot.info.mode)
    kept, left = fair_choice(ranked, max_rows)
    return kept, more_text(left)


def error_table(trials: Sequence[Trial], max_rows: int = ERROR_ROWS) -> TrialTable | None:
    """Return trials that failed at least once; `*` marks those that succeeded after all."""
    failed = [trial for trial in trials if trial.num_failures or trial.status == "ERROR"]
    if not failed:
        return None
    marks = ["*" if trial.status == "TERMINATED" else "" for trial in failed[:max_rows]]
    rows = tuple(
        (f"{trial}{mark}", str(trial.num_failures), error_file(trial))
        for trial, mark in zip(failed, marks, strict=False)
    )
    left = len(failed) - len(rows)
    return TrialTable(
        ("Trial name", "# failures", "error file"), rows, f"{left:,} more with errors" if left else ""
    )


def cause_lines(snapshot: ExperimentSnapshot) -> list[str]:
    """Return `6 trials failed: ValueError: no luck (train.py:12)`, one line for each kind of failure."""
    lines = [
        f"{count:,} trial{'s' if count > 1 else ''} failed{f': {cause}' if cause else ''}"
        for cause, count in snapshot.causes[:CAUSES_SHOWN]
    ]
    left = sum(count for _, count in snapshot.causes[CAUSES_SHOWN:])
    return [*lines, f"{left:,} more failed for other reasons"] if left else lines


def error_lines(trials: Sequence[Trial]) -> tuple[str, str]:
    """Return the lines above and below the table of errors."""
    errored = sum(trial.status == "ERROR" for trial in trials)
    recovered = any(trial.status == "TERMINATED" and trial.num_failures for trial in trials)
    after = "* The trial terminated successfully after retrying." if recovered else ""
    return f"Number of errored trials: {errored:,}", after


def error_file(trial: Trial) -> str:
    """Return where the whole traceback is; "" when nothing was written."""
    if not trial.error_filename:
        return ""
    return f"{trial.local_path}/{trial.error_filename}" if trial.local_path else trial.error_filename
