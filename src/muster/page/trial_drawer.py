"""Describe one trial for the drawer: config, results, checkpoints, error, log, and why, in words.

Every file is looked for inside the experiment's directory only, links followed; what is long is cut.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from muster.base.untrusted import text_of
from muster.host.regular_file import open_regular
from muster.page.trial_arrays import MASK, cut, is_secret
from muster.stores.experiment.summary import TrialSummary
from muster.trials.events import TrialFailureKind
from muster.trials.metrics import flatten
from muster.trials.plugins import PAUSED, STOPPED
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS, EXPR_ERROR_FILE

LOG_BYTES = 16_384
MAX_VALUES = 500
MAX_TEXT = 2_000
_SHOWN = ("note.txt", "stderr", "stdout")
_LINKED = ("at ", "to ", "so that ", "from ")  # reasons that begin so continue with the sentence
_KINDS = {
    TrialFailureKind.USER_ERROR: "its code raised an exception",
    TrialFailureKind.KILLED: "a signal ended its process",
    TrialFailureKind.OUT_OF_MEMORY: "it ran out of memory",
    TrialFailureKind.EXITED: "its process ended without a word",
    TrialFailureKind.TIME_LIMIT: "it reached its time limit",
    TrialFailureKind.SILENT: "it was not heard of for too long",
    TrialFailureKind.UNPICKLABLE: "its result or code could not be sent",
    TrialFailureKind.START: "its process could not be started",
    TrialFailureKind.NEVER_REPORTED: "its command ended without reporting the metric",
    TrialFailureKind.RESET_REFUSED: "its reset_config refused another config",
    TrialFailureKind.NODE_LOST: "its machine went away",
    TrialFailureKind.PREEMPTED: "its machine was taken back",
    TrialFailureKind.PLUGIN: "a callback, the scheduler or the searcher raised at its end",
}


def describe(trial: TrialSummary, root: str, folder: str | None, *, masks: bool = False) -> dict[str, Any]:
    """Return everything that the drawer shows as plain data; `masks` hides what is named like a secret."""
    place = inside(root, folder) if folder else None
    failure = trial.failure
    return {
        "trial_id": trial.trial_id,
        "name": cut(trial.trial_name),
        "status": trial.status,
        "folder": folder or "",
        "config": pairs(trial.config, masks=masks),
        "config_json": "" if masks else _as_json(trial.config),
        "result": pairs({k: v for k, v in trial.result.items() if k not in AUTO_RESULT_KEYS}, masks=masks),
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
        "error_lines": ["", ""]
        if failure is None
        else list(error_lines(failure.traceback or failure.message)),
        "error": "" if failure is None else _tail_of(failure.traceback or failure.message),
        "error_file": "" if place is None else log_tail(root, os.path.join(place, EXPR_ERROR_FILE)),
        "logs": logs_in(root, place),
        "why": why(trial) + (f" Its config: {cut(trial.why_suggested)}." if trial.why_suggested else ""),
    }


_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+), in (.*)\n(?: {4,}(.*))?', re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
_NOT_THE_USERS = ("site-packages", "/lib/python", "/muster/", "<frozen")


def error_lines(text: str) -> tuple[str, str]:
    """Return the line of a traceback that says what happened, and the user's own line, where there is one.

    Example:
        >>> error_lines('Traceback:\\n  File "/a/b.py", line 3, in f\\n    1 / 0\\nZeroDivisionError: no')
        ('ZeroDivisionError: no', 'b.py:3 in f: 1 / 0')
    """
    clean = text.encode(errors="replace").decode()[-LOG_BYTES:]
    lines = [line.rstrip() for line in clean.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "")
    frames = [frame for frame in _FRAME.findall(clean) if not any(n in frame[0] for n in _NOT_THE_USERS)]
    if not frames:
        return last, ""
    file, number, function, code = frames[-1]
    return last, f"{os.path.basename(file)}:{number} in {function}{f': {code.strip()}' if code else ''}"


def why(trial: TrialSummary) -> str:
    """Return in words why the trial waits, runs, was stopped or failed, as far as its facts say."""
    failure, reports = trial.failure, f"{trial.reports:,} result{'' if trial.reports == 1 else 's'}"
    reason = f"{', ' if trial.reason.startswith(_LINKED) else ': '}{cut(trial.reason, MAX_TEXT)}."
    decided = f" It was {trial.decision}{reason}" if trial.reason else ""
    if trial.status in ("PENDING", "PAUSED", "RUNNING", "INTERRUPTED"):
        return _why_not_over(trial, reports, reason, decided)
    if failure is not None:
        said, line = error_lines(failure.traceback or failure.message)
        at = f", at {line}" if line else ""
        return f"It failed after {reports}, because {_KINDS[failure.kind]}: {cut(said, 300)}{at}".rstrip(": ")
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


def pairs(values: Mapping[str, Any], *, masks: bool = False) -> list[list[str]]:
    """Return names and values as texts, the first MAX_VALUES of them."""
    flat = flatten(dict(values))
    shown = [
        [cut(str(key)), MASK if masks and is_secret(str(key)) else _text(value)]
        for key, value in list(flat.items())[:MAX_VALUES]
    ]
    if len(flat) > MAX_VALUES:
        shown.append(["…", f"{len(flat) - MAX_VALUES:,} more are not shown"])
    return shown


def _as_json(config: Mapping[str, Any]) -> str:
    """Return a config to copy; values that are not data as text."""
    text = json.dumps(dict(config), indent=1, default=text_of)
    return text if len(text) <= LOG_BYTES else ""


def checkpoints_in(place: str | None) -> list[str]:
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(n for n in os.listdir(place or "") if n.startswith("checkpoint_")) if place else []
    return names[-50:]


def logs_in(root: str, place: str | None) -> dict[str, str]:
    """Return the ends of the files that a trial wrote its output to, and of a note of the user."""
    if place is None:
        return {}
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(n for n in os.listdir(place) if n in _SHOWN or n.endswith(".log"))
    found = {cut(name): log_tail(root, os.path.join(place, name)) for name in names[:8]}
    return {name: text for name, text in found.items() if text}


def log_tail(root: str, path: str) -> str:
    """Return the end of a file of the experiment; "" when there is none, or when it lies elsewhere."""
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
    """Return the real path of something below the root; None when it is not below it, or no plain file."""
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
    more = len(clean) - LOG_BYTES
    return clean if more <= 0 else f"… ({more:,} characters before)\n{clean[-LOG_BYTES:]}"
