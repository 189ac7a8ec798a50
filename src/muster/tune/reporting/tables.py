"""Choose trials and columns of tables, and draws tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from muster.base.text import padded
from muster.trials.metrics import flatten, rank_key
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS, SHOULD_CHECKPOINT
from muster.tune.analysis.tables import number
from muster.tune.reporting.formats import MAX_NAME, cell, shortened, wrapped
from muster.tune.reporting.tally import INTERRUPTED, STATUSES, lookup

if TYPE_CHECKING:
    from muster.trials.model import Trial
    from muster.tune.analysis.trial_record import TrialRecord

AnyTrial = TypeVar("AnyTrial", "Trial", "TrialRecord")

ALL_UP_TO = 20  # with so few trials every one has a row
PER_STATUS = 5
INFERRED = 4  # metrics shown without being asked for

KNOWN_METRICS = {
    "mean_accuracy": "acc",
    "mean_loss": "loss",
    "training_iteration": "iter",
    "time_total_s": "total time (s)",
    "timesteps_total": "ts",
    "episode_reward_mean": "reward",
}
_NOT_INFERRED = frozenset(AUTO_RESULT_KEYS) | frozenset(KNOWN_METRICS) | {SHOULD_CHECKPOINT, "experiment_id"}


class TrialTable(NamedTuple):
    """Text, ready to be drawn; `more` says how many have no row: `7 more TERMINATED`."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str = ""


class TrialColumns(NamedTuple):
    """Holds flat keys of the config and of results, with their titles."""

    parameters: Mapping[str, str]
    metrics: Mapping[str, str]


def columns_for(
    trials: Sequence[Trial], parameters: Sequence[str], metric: str | None, *, limit: int = INFERRED
) -> TrialColumns:
    """Return the searched parameters, the usual metrics that occur, the optimized one, and a few others."""
    flats = [flatten(trial.last_result) for trial in trials]
    metrics = {key: title for key, title in KNOWN_METRICS.items() if any(key in flat for flat in flats)}
    inferred: dict[str, str] = {}
    if metric is not None and metric not in metrics:
        inferred[metric] = wrapped(metric)
    for flat in flats:
        for key, value in flat.items():
            if len(inferred) >= limit:
                break
            if key not in _NOT_INFERRED and str(key)[:7] != "config/" and number(value) is not None:
                inferred.setdefault(key, wrapped(str(key)))
    return TrialColumns({key: wrapped(key) for key in parameters}, {**metrics, **inferred})


def table_of(
    trials: Sequence[Trial], columns: TrialColumns, more: str = "", *, interrupted: bool = False
) -> TrialTable:
    headers = ("Trial name", "status", *columns.parameters.values(), *columns.metrics.values())
    return TrialTable(headers, tuple(row_of(trial, columns, interrupted) for trial in trials), more)


def status_of(trial: Trial, interrupted: bool) -> str:
    """Return what users read: after Ctrl-C nothing runs any more."""
    return INTERRUPTED if interrupted and trial.status == "RUNNING" else trial.status


def row_of(
    trial: Trial, columns: TrialColumns, interrupted: bool = False, *, max_length: int = MAX_NAME
) -> tuple[str, ...]:
    parameters = [parameter(trial, key) for key in columns.parameters]
    metrics = [lookup(trial.last_result, key) for key in columns.metrics]
    cells = (shortened(cell(value), max_length) for value in (*parameters, *metrics))
    return (shortened(str(trial), max_length), status_of(trial, interrupted), *cells)


def parameter(trial: Trial, key: str) -> Any:  # noqa: ANN401 - a user's value
    """Return the value of a searched parameter, from the config first: a scheduler may have changed it."""
    found = lookup(trial.config, key)
    return trial.evaluated_params.get(key) if found is None else found


def parameters_of(trial: Trial, keys: Sequence[str]) -> dict[str, Any]:
    """Return the searched parameters of one trial; all evaluated ones when the searched ones are unknown."""
    if not keys:
        return dict(trial.evaluated_params or trial.config)
    return {key: parameter(trial, key) for key in keys}


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials by status, in the order in which statuses are shown; within one, as they came."""
    place = {status: index for index, status in enumerate(STATUSES)}
    return sorted(trials, key=lambda trial: place[trial.status])


def best_first(trials: Iterable[AnyTrial], metric: str | None, mode: str | None) -> list[AnyTrial]:
    """Sort by the last value of a metric; without a metric, a mode or a finite value, as they came."""
    if metric is None or mode is None:
        return list(trials)

    def key(trial: AnyTrial) -> float:
        found = rank_key(lookup(trial.last_result, metric), mode)
        return inf if found is None else found

    return sorted(trials, key=key)


def chosen(trials: Iterable[Trial], counts: Mapping[str, int], per_status: int) -> tuple[list[Trial], str]:
    """Return the first few of each status, and in words how many more there are."""
    kept: list[Trial] = []
    shown = dict.fromkeys(STATUSES, 0)
    for trial in in_order(trials):
        if shown[trial.status] < per_status:
            shown[trial.status] += 1
            kept.append(trial)
    left = {status: counts[status] - shown[status] for status in STATUSES}
    return kept, more_text(left)


def more_text(left: Mapping[str, int]) -> str:
    """Return `7 more TERMINATED, 33 more PENDING`."""
    return ", ".join(f"{count:,} more {status}" for status, count in left.items() if count > 0)


def fair_choice(trials: Sequence[Trial], max_rows: float) -> tuple[list[Trial], dict[str, int]]:
    """Return trials such that each status gets its share of the rows, and how many were left out."""
    by_status = {status: [t for t in trials if t.status == status] for status in STATUSES}
    kept = dict.fromkeys(STATUSES, 0)
    room = max_rows
    while room > 0 and (open_ones := [s for s in STATUSES if kept[s] < len(by_status[s])]):
        for status in open_ones:
            if room > 0:
                kept[status] += 1
                room -= 1
    chosen = [trial for status in STATUSES for trial in by_status[status][: kept[status]]]
    return chosen, {s: len(by_status[s]) - kept[s] for s in STATUSES if len(by_status[s]) > kept[s]}


class BoxCharacters(NamedTuple):
    """Says what a table is drawn with: corners, sides, lines, and what is between columns."""

    top: str
    middle: str
    bottom: str
    side: str
    line: str
    gap: str = " " * 5
    crossing: str = ""  # the gap inside a horizontal line; "": the line goes through


BOX = BoxCharacters("╭╮", "├┤", "╰╯", "│", "─")
ASCII = BoxCharacters("++", "++", "++", "|", "-")
PSQL = BoxCharacters("++", "||", "++", "|", "-", " | ", "-+-")  # Ray's tables


def frame_for(encoding: str | None) -> BoxCharacters:
    """Return box lines when the stream can show them, else ASCII."""
    try:
        "╭─│".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOX


def framed(headers: Sequence[str], rows: Sequence[Sequence[str]], frame: BoxCharacters = BOX) -> str:
    """Draw a table; columns of numbers are aligned right, the rest left. A header may have two lines."""
    split = [header.split("\n") for header in headers]
    height = max((len(parts) for parts in split), default=1)
    head = list(zip(*([""] * (height - len(parts)) + parts for parts in split), strict=True))
    columns = [[row[i] for row in rows if row[i]] for i in range(len(headers))]
    right = [bool(cells) and all(map(_is_number, cells)) for cells in columns]
    widths = _widths([*head, *rows])
    lines = [frame.gap.join(padded(row, widths, right)) for row in (*head, *rows)]
    return _boxed(lines[:height], lines[height:], widths, frame)


def listed(title: Sequence[str], rows: Sequence[tuple[str, str]], frame: BoxCharacters = BOX) -> str:
    """Draw two columns, name and value, below a title of one or two cells."""
    is_pair = len(title) == 2
    widths = _widths([tuple(title), *rows] if is_pair else rows)
    widths[1] = max(widths[1], 0 if is_pair else len(title[0]) - len(frame.gap) - widths[0])
    total = sum(widths) + len(frame.gap)
    head = frame.gap.join(padded(title, widths, [False, False])) if is_pair else title[0].ljust(total)
    body = [frame.gap.join(padded(row, widths, [False, not is_pair])) for row in rows]
    return _boxed([head], body, widths, frame)


def html_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from html import escape

    head = "".join(f"<th>{escape(title)}</th>" for title in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _boxed(head: Sequence[str], body: Sequence[str], widths: Sequence[int], frame: BoxCharacters) -> str:
    crossing = frame.crossing or frame.line * len(frame.gap)
    line = f"{frame.line}{crossing.join(frame.line * width for width in widths)}{frame.line}"
    shown = [f"{frame.top[0]}{line}{frame.top[1]}"]
    shown += [f"{frame.side} {row} {frame.side}" for row in head]
    shown.append(f"{frame.middle[0]}{line}{frame.middle[1]}")
    shown += [f"{frame.side} {row} {frame.side}" for row in body]
    shown.append(f"{frame.bottom[0]}{line}{frame.bottom[1]}")
    return "\n".join(shown)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else [0, 0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
