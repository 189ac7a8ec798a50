"""Write plots of finished experiments with the dashboard's charts, from trials in memory.

`ResultGrid.plot("x.html")` and `muster tune compare -o x.html` call it: a report without a store, which also
works for experiments that Ray Tune wrote.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from muster.page.export import MAX_DETAILED, page_of
from muster.page.fact_loader import is_early
from muster.page.result_curves import ResultRows, rollup
from muster.page.trial_arrays import OVER, TrialArrays, number_of
from muster.page.trial_drawer import error_lines, pairs
from muster.trials.metrics import flatten
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.analysis.trial_record import TrialRecord

Curves = Mapping[str, tuple[Any, Any]]  # by trial: arrays of iterations and values
_OWN = frozenset(AUTO_RESULT_KEYS) - {"cost_usd"}


class PlottedExperiment(Struct, frozen=True, kw_only=True):
    """One experiment of a plot."""

    name: str
    metric: str
    mode: str
    trials: Sequence[TrialRecord]
    curves: Curves = {}
    constraints: Mapping[str, float] = {}


def plot_page(experiments: Sequence[PlottedExperiment], start: str) -> str:
    """Return an HTML page that shows experiments; `start` is the view to begin with, as in a URL."""
    keys = [str(place) for place in range(len(experiments))]
    listed = [{"key": key, "name": each.name} for key, each in zip(keys, experiments, strict=True)]
    data: dict[str, Any] = {
        "list": {"experiments": listed, "clusters": []},
        "start": start,
        **{part: {} for part in ("tables", "curves", "raw", "trials", "lineage", "clusters", "why")},
    }
    for key, each in zip(keys, experiments, strict=True):
        table = _table(each.trials)
        data["tables"][key] = base64.b64encode(table.encode({"summary": _summary(each)}, masks=True)).decode()
        rows, data["raw"][key] = _curves(each, table)
        data["curves"][key] = {each.metric: {**rollup(rows, each.metric), "behind": 0, "left_out": 0}}
        data["lineage"][key] = []
        data["trials"][key] = {one.trial_id: _details(one) for one in each.trials[:MAX_DETAILED]}
    return page_of(data, " and ".join(each.name for each in experiments))


def _table(trials: Iterable[TrialRecord]) -> TrialArrays:
    table = TrialArrays()
    table.begin_change()
    for trial in trials:
        row, last = table.row_of(trial.trial_id), trial.last_result
        table.set(row, "status", _status_of(trial))
        for name in ("training_iteration", "time_total_s"):
            table.set(row, name, number_of(last.get(name)))
        ended = number_of(last.get("timestamp"))
        for name, at in (("created", trial.start_time), ("started", trial.start_time), ("reported", ended)):
            table.set_times([row], name, [at])
        table.set_column([row], "reports", [last.get("training_iteration") and 1])
        if trial.error_text:
            for name, text in zip(("error", "failed_at"), error_lines(trial.error_text), strict=True):
                table.set(row, name, text)
        table.set_many(row, "config", flatten(trial.evaluated_params or trial.config))
        own = {key: value for key, value in flatten(last).items() if key not in _OWN}
        table.set_many(row, "metric", {k: v for k, v in own.items() if not str(k).startswith("config/")})
    return table


def _status_of(trial: TrialRecord) -> str:
    return "STOPPED" if is_early(trial.status, trial.decision, trial.reason) else trial.status


def _curves(each: PlottedExperiment, table: TrialArrays) -> tuple[ResultRows, dict[str, Any]]:
    rows, raw = ResultRows([each.metric]), {}
    for trial_id, (iterations, values) in each.curves.items():
        row = table.rows[trial_id]
        if len(values):
            rows.add(row, np.array([iterations, values], dtype=np.float32).T)
            raw[f"{row}/{each.metric}"] = rows.of(row, each.metric)
    return rows, raw


def _summary(each: PlottedExperiment) -> dict[str, Any]:
    counts = Counter(_status_of(trial) for trial in each.trials)
    texts = ("problem", "raised", "note", "resume", "scheduler", "search_alg", "ended_by", "address")
    return {
        **dict.fromkeys(texts, ""),
        "name": each.name,
        "metric": each.metric,
        "goals": [each.metric],
        "mode": each.mode,
        "modes": [each.mode],
        "constraints": each.constraints,
        "state": "finished" if counts.keys() <= set(OVER) else "unfinished",
        "counts": counts,
        "of": len(each.trials),
        "unreadable": 0,
        "policy_bytes": 0,
        "now": 0.0,
        "behind": 0,
    }


def _details(trial: TrialRecord) -> dict[str, Any]:
    result = {key: value for key, value in trial.last_result.items() if key not in AUTO_RESULT_KEYS}
    return {
        **dict.fromkeys(("folder", "config_json", "error_file", "why"), ""),
        "trial_id": trial.trial_id,
        "name": trial.name,
        "config": pairs(trial.config, masks=True),
        "result": pairs(result, masks=True),
        "facts": [],
        "times": {"created": trial.start_time, "started": None, "ended": None},
        "starts": 1,
        "failures": trial.num_failures,
        "checkpoints": [],
        "error": trial.error_text,
        "error_lines": list(error_lines(trial.error_text)),
        "logs": {},
    }
