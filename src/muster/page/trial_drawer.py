"""Describes one trial for the drawer: config, results, checkpoints, error, log, and why, in words.

Every file is looked for inside the experiment's directory only, links followed; what is long is cut.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

from muster.base.untrusted import text_of
from muster.host.regular_file import open_regular
from muster.page.trial_arrays import cut
from muster.stores.experiment.summary import TrialSummary
from muster.trials.events import TrialFailureKind
from muster.trials.metrics import flatten
from muster.trials.plugins import PAUSED, STOPPED
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS, EXPR_ERROR_FILE

LOG_BYTES = 16_384
MAX_VALUES = 500
MAX_TEXT = 2_000
_LINKED = ("at ", "to ", "so that ", "from ")  # reasons that begin so go on with the sentence
_KINDS = {
    TrialFailureKind.USER_ERROR: "its code raised an exception",
    TrialFailureKind.KILLED: "a signal ended its process",
    TrialFailureKind.OUT_OF_MEMORY: "it ran out of memory",
    TrialFailureKind.EXITED: "its process ended without a word",
    TrialFailureKind.TIME_LIMIT: "it reached its time limit",
    TrialFailureKind.SILENT: "it was not heard of for too long",
    TrialFailureKind.UNPICKLABLE: "its result or code could not be sent",
    TrialFailureKind.START: "its process could not be started",
    TrialFailureKind.RESET_REFUSED: "its reset_config refused another config",
    TrialFailureKind.NODE_LOST: "its machine went away",
    TrialFailureKind.PREEMPTED: "its machine was taken back",
    TrialFailureKind.PLUGIN: "a callback, the scheduler or the searcher raised at its end",
}


def describe(trial: TrialSummary, root: str, folder: str | None) -> dict[str, Any]:
    """Returns everything that the drawer shows; all of it is plain data."""
    place = inside(root, folder) if folder else None
    failure = trial.failure
    return {
        "trial_id": trial.trial_id,
        "name": cut(trial.trial_name),
        "status": trial.status,
        "config": pairs(trial.config),
        "result": pairs({k: v for k, v in trial.result.items() if k not in AUTO_RESULT_KEYS}),
        "facts": pairs({k: trial.result[k] for k in AUTO_RESULT_KEYS if k in trial.result and k != "config"}),
        "times": {
            "created": trial.created_at,
            "started": trial.started_at,
            "reported": trial.reported_at,
            "ended": trial.ended_at,
        },
        "starts": trial.starts,
        "reports": trial.reports,
        "failures": trial.failures,
        "checkpoints": checkpoints_in(place),
        "error": "" if failure is None else _tail_of(failure.traceback or failure.message),
        "error_file": "" if place is None else log_tail(root, os.path.join(place, EXPR_ERROR_FILE)),
        "logs": logs_in(root, place),
        "why": why(trial) + (f" Its config: {cut(trial.why_suggested)}." if trial.why_suggested else ""),
    }


def why(trial: TrialSummary) -> str:
    """Returns in words why the trial waits, runs, was stopped or failed, as far as its facts say."""
    failure, reports = trial.failure, f"{trial.reports:,} result{'' if trial.reports == 1 else 's'}"
    reason = f"{', ' if trial.reason.startswith(_LINKED) else ': '}{cut(trial.reason, MAX_TEXT)}."
    decided = f" It was {trial.decision}{reason}" if trial.reason else ""
    if trial.status in ("PENDING", "PAUSED", "RUNNING", "INTERRUPTED"):
        return _why_not_over(trial, reports, reason, decided)
    if failure is not None:
        first = failure.message.strip().splitlines()[0] if failure.message.strip() else ""
        return f"It failed after {reports}, because {_KINDS[failure.kind]}: {cut(first, 300)}".rstrip(": ")
    if trial.returned:
        return f"It ended after {reports}: its code returned.{decided}"
    if trial.decision == STOPPED:
        return f"It was stopped after {reports}{reason}"
    return f"It was stopped after {reports}, by the scheduler, a stopper or the end of the experiment."


def _why_not_over(trial: TrialSummary, reports: str, reason: str, decided: str) -> str:
    if trial.status == "PENDING":
        again = f" It ran {trial.starts} time(s) before.{decided}" if trial.starts else ""
        return f"It waits for room: the scheduler has not started it yet.{again}"
    if trial.status == "PAUSED":
        is_explained = trial.decision == PAUSED
        return f"It was paused after {reports}{reason if is_explained else ', until it is promoted.'}"
    if trial.status == "INTERRUPTED":
        return f"It ran when the experiment's process went away, after {reports}.{decided}"
    again = f" This is its start number {trial.starts}." if trial.starts > 1 else ""
    return f"It runs and has reported {reports}.{again}{decided}"


def pairs(values: Mapping[str, Any]) -> list[list[str]]:
    """Returns names and values as texts, the first MAX_VALUES of them."""
    flat = flatten(dict(values))
    shown = [[cut(str(key)), _text(value)] for key, value in list(flat.items())[:MAX_VALUES]]
    if len(flat) > MAX_VALUES:
        shown.append(["…", f"{len(flat) - MAX_VALUES:,} more are not shown"])
    return shown


def checkpoints_in(place: str | None) -> list[str]:
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(n for n in os.listdir(place or "") if n.startswith("checkpoint_")) if place else []
    return names[-50:]


def logs_in(root: str, place: str | None) -> dict[str, str]:
    """Returns the ends of the files that a trial wrote its output to."""
    if place is None:
        return {}
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(n for n in os.listdir(place) if n in ("stdout", "stderr") or n.endswith(".log"))
    found = {cut(name): log_tail(root, os.path.join(place, name)) for name in names[:8]}
    return {name: text for name, text in found.items() if text}


def log_tail(root: str, path: str) -> str:
    """Returns the end of a file of the experiment; "" when there is none, or when it lies elsewhere."""
    real = inside(root, os.path.relpath(path, root))
    if real is None:
        return ""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - LOG_BYTES))
            text = stream.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return text if size <= LOG_BYTES else f"… ({size - LOG_BYTES:,} bytes before)\n{text}"


def inside(root: str, relative: str) -> str | None:
    """Returns the real path of something below the root; None when it is not below it, or no plain file."""
    top = os.path.realpath(root)
    real = os.path.realpath(os.path.join(top, relative))
    is_below = os.path.commonpath([top, real]) == top and real != top
    is_plain = os.path.isdir(real) or os.path.isfile(real)
    return real if is_below and is_plain else None


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.8g}" if math.isfinite(value) else str(value)
    return cut(text_of(value), MAX_TEXT)


def _tail_of(text: str) -> str:
    clean = text.encode(errors="replace").decode()
    return (
        clean
        if len(clean) <= LOG_BYTES
        else f"… ({len(clean) - LOG_BYTES:,} characters before)\n" + clean[-LOG_BYTES:]
    )
