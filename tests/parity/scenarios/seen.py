"""Read what an experiment left behind, as JSON without what differs from run to run: ids, times, paths."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

from system import ROOT

VOLATILE = {
    "timestamp",
    "date",
    "time_this_iter_s",
    "time_total_s",
    "time_since_restore",
    "pid",
    "hostname",
    "node_ip",
}
# Ray marks results that came with a checkpoint for its own controller; ours needs no mark.
MARKS = {"should_checkpoint"}
OURS = {".muster_manifest.json"}  # beside the user's files in a checkpoint: what it must hold to be whole
DATE = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
TRIAL_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{5}_(\d{5})(?!\d)|(?<![0-9a-f])[0-9a-f]{8}(?![0-9a-f])")


def named(text: str) -> str:
    """Without dates and random ids; the number in an id stays."""
    text = DATE.sub("DATE", text)
    return TRIAL_ID.sub(lambda found: f"ID_{found.group(1)}" if found.group(1) else "ID", text)


def plain(value):
    """As JSON can say it: NaN and infinities by name, everything unknown as the name of its type."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return named(value).replace(str(ROOT), "ROOT")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "item"):
        return plain(value.item())
    return f"<{type(value).__name__}>"


def row(result):
    """A result with its keys in order; what differs from run to run is masked by its type."""
    if result is None:
        return None
    return [
        [key, f"<{type(value).__name__}>" if key in VOLATILE else plain(value)]
        for key, value in result.items()
        if key not in MARKS
    ]


def columns(names) -> list[str]:
    return [name for name in names if name not in MARKS]


def files(directory: Path) -> list[str]:
    """Names below a directory, the ones of event files and temporary ones shortened."""
    found = sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name not in OURS
    )
    return sorted(
        {re.sub(r"events\.out\.tfevents\..*", "events.out.tfevents", named(name)) for name in found}
    )


def trial_files(directory: Path) -> dict:
    """The contents of a trial's files."""
    about: dict = {"files": files(directory)}
    result = directory / "result.json"
    if result.exists():
        about["result.json"] = [row(json.loads(line)) for line in result.read_text().splitlines()]
    progress = directory / "progress.csv"
    if progress.exists():
        with progress.open(newline="") as stream:
            header, *lines = list(csv.reader(stream))
        about["progress.csv"] = {
            "header": columns(header),
            "rows": [
                [
                    plain(cell) if key not in VOLATILE else ""
                    for key, cell in zip(header, line, strict=False)  # Ray writes ragged ones
                    if key not in MARKS
                ]
                for line in lines
            ],
        }
    params = directory / "params.json"
    if params.exists():
        about["params.json"] = plain(params.read_text())
    error = directory / "error.txt"
    if error.exists():
        text = error.read_text()
        about["error.txt"] = re.findall(r"Failure # (\d+)", text)
    return about


def trial(result) -> dict:
    """One Result and its directory."""
    best = result.best_checkpoints or []
    frame = result.metrics_dataframe
    return {
        "directory": named(Path(result.path).name),
        "config": plain(result.config),
        "metrics": row(result.metrics),
        "error": None if result.error is None else failure(result.error),
        "checkpoint": None if result.checkpoint is None else Path(result.checkpoint.path).name,
        "best_checkpoints": [
            [Path(checkpoint.path).name, metrics.get("training_iteration")] for checkpoint, metrics in best
        ],
        "columns": None if frame is None else columns(frame.columns),
        "rows": None if frame is None else len(frame),
        **trial_files(Path(result.path)),
    }


def failure(error) -> str:
    """The user's exception: its type and text, without the traceback around it."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1]}"


def grid(found, *, order=None) -> dict:
    """A whole ResultGrid, trials in their order or sorted by `order`."""
    results = list(found)
    if order is not None:
        results.sort(key=order)
    frame = found.get_dataframe()
    return {
        "trials": [trial(each) for each in results],
        "errors": len(found.errors),
        "num_errors": found.num_errors,
        "num_terminated": found.num_terminated,
        "columns": columns(frame.columns),
    }


def raised(function, *arguments, **more):
    """The type of the exception, or what was returned."""
    try:
        return plain(function(*arguments, **more))
    except BaseException as error:
        return f"raised {type(error).__name__}"
