"""Formats the text of Ray's older console: `== Status ==`, one row per trial, YAML per result."""

from __future__ import annotations

import time  # only to format a given moment
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.trials.metrics import flatten, rank_key
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import number
from muster.tune.reporting.formats import amount, cell, shortened
from muster.tune.reporting.tables import best_first, parameter, parameters_of
from muster.tune.reporting.tally import STATUSES, lookup

if TYPE_CHECKING:
    from muster.trials.model import Trial


def time_text(now: float, ran_s: float) -> str:
    """Returns `Current time: 2026-11-15 21:37:05 (running for 00:00:03.97)`."""
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    minutes, seconds = divmod(max(0.0, ran_s), 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    day_text = f"{days} days, " if days else ""
    return f"Current time: {date} (running for {day_text}{hours:02d}:{minutes:02d}:{seconds:05.2f})"


def resource_text(capacity: Mapping[str, float], used: Mapping[str, float]) -> str:
    parts = [f"{float(used.get(name, 0))}/{amount(capacity.get(name, 0))} {name}s" for name in ("CPU", "GPU")]
    others = [name for name in capacity if name not in ("CPU", "GPU", "memory")]
    parts += [f"{float(used.get(name, 0))}/{amount(capacity[name])} {name}" for name in others]
    return f"Logical resource usage: {', '.join(parts)}"


def count_text(trials: Sequence[Trial], total: int | None) -> str:
    """Returns `Number of trials: 2/5 (1 RUNNING, 1 TERMINATED)`."""
    counts = {status: sum(trial.status == status for trial in trials) for status in STATUSES}
    shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()) if count)
    planned = f"/{total}" if total else ""
    return f"Number of trials: {len(trials)}{planned}" + (f" ({shown})" if shown else "")


def best_text(trials: Sequence[Trial], metric: str | None, mode: str | None, keys: Sequence[str]) -> str:
    best = best_trial(trials, metric, mode)
    if best is None:
        return ""
    values = f"{metric}={lookup(best.last_result, metric or '')}"
    return f"Current best trial: {best.trial_id} with {values} and parameters={parameters_of(best, keys)}"


def best_trial(trials: Sequence[Trial], metric: str | None, mode: str | None) -> Trial | None:
    """Returns the best trial by the last result; see `rank_key`."""
    if metric is None or mode is None:
        return None
    first = next(iter(best_first(trials, metric, mode)), None)
    return first if first and rank_key(lookup(first.last_result, metric), mode) is not None else None


def left_out_text(left: Mapping[str, int]) -> str:
    total = sum(left.values())
    return (
        f"... {total} more trials not shown ({', '.join(f'{n} {s}' for s, n in left.items())})"
        if total
        else ""
    )


def trial_row(
    trial: Trial, parameters: Sequence[str], metrics: Sequence[str], max_length: int
) -> tuple[str, ...]:
    return (
        shortened(str(trial), max_length),
        trial.status,
        location_text(trial),
        *(shortened(cell(parameter(trial, key)), max_length) for key in parameters),
        *(shortened(cell(lookup(trial.last_result, key)), max_length) for key in metrics),
    )


def location_text(trial: Trial) -> str:
    """Returns `address:pid` of a trial's process, while it has one."""
    place = trial.location
    return f"{place['node_ip']}:{place['pid']}" if "node_ip" in place and "pid" in place else ""


def trial_sentence(trial: Trial, result: Mapping[str, Any], metric: str | None, keys: Sequence[str]) -> str:
    """Returns `Trial X reported loss=1.00 with parameters={...}.`"""
    names = [metric] if metric else inferred_metrics([trial], 4)
    pairs = [(name, lookup(result, name)) for name in names]
    values = ",".join(f"{name}={_two_decimals(value)}" for name, value in pairs if value is not None)
    return f"Trial {trial} reported {values or 'nothing'} with parameters={parameters_of(trial, keys)}."


def trial_details(trial: Trial, result: Mapping[str, Any], end: str) -> str:
    """Returns a YAML block with the whole result."""
    import yaml

    shown = {key: _plain(value) for key, value in result.items() if key != "config"}
    block = yaml.safe_dump(shown, default_flow_style=False, sort_keys=True)
    body = "\n".join(f"  {line}" for line in block.strip().splitlines())
    return f"Result for {trial}:\n{body}\n" + (f"{end}\n" if end else "")


def inferred_metrics(trials: Sequence[Trial], limit: int) -> list[str]:
    """Returns the names of numbers that trials report by themselves."""
    found: dict[str, None] = {}
    for trial in trials:
        for key, value in flatten(trial.last_result).items():
            if len(found) >= limit:
                return list(found)
            if key not in AUTO_RESULT_KEYS and not key.startswith("config/") and number(value) is not None:
                found[key] = None
    return list(found)


def _two_decimals(value: object) -> str:
    as_number = number(value)
    return str(value) if as_number is None or isinstance(value, bool | int) else f"{as_number:.2f}"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a user's value
    """Returns a value that YAML can express safely."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    as_number = number(value)
    return str(value) if as_number is None else as_number
