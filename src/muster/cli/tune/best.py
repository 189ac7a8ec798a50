"""Implements `muster tune best`: the best trials by a metric, with configs ready to paste."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from muster.cli.tune.experiment import ExperimentView
from muster.cli.tune.table import not_data, plain, strict_json
from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary
from muster.trials.metrics import flatten
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import number


class ScoredTrial(Struct, frozen=True):
    """A ScoredTrial is a trial with the value it is compared by."""

    trial: TrialSummary
    value: float


def best_of(
    experiment: ExperimentView, metric: str | None = None, mode: str | None = None, scope: str = "last"
) -> list[ScoredTrial]:
    """Returns the trials with a finite value, the best first; equal ones in the order of their creation."""
    metric, mode = wanted_metric(experiment, metric, mode)
    found = []
    for trial in experiment.trials:
        value = _last(trial, metric) if scope == "last" else _analysed(experiment, trial, metric, mode, scope)
        if value is not None and math.isfinite(value):
            found.append(ScoredTrial(trial, value))
    found.sort(key=lambda each: -each.value if mode == "max" else each.value)
    return found


def wanted_metric(experiment: ExperimentView, metric: str | None, mode: str | None) -> tuple[str, str]:
    """Returns metric and mode: the options, else the experiment's own. Raises ConfigError without both."""
    chosen = metric or experiment.metric
    if not chosen:
        known = reported_metrics(experiment)
        hint = f"it reported {', '.join(known)}" if known else "and no trial reported anything yet"
        raise ConfigError(f"{experiment.path}: no metric is set in it; give --metric ({hint})")
    mode = mode or (experiment.mode if metric in (None, experiment.metric) else None)
    if not mode:
        raise ConfigError(f"--metric {chosen}: give --mode min or --mode max with it")
    return chosen, mode


def need_best(found: Sequence[ScoredTrial], experiment: ExperimentView, metric: str) -> None:
    """Returns the best trials. Raises ConfigError, naming what was reported, when there is none."""
    if found:
        return
    known = reported_metrics(experiment)
    if metric in known:
        hint = "all its values are NaN or infinite"
    else:
        hint = f"reported are {', '.join(known)}" if known else "no trial reported a number"
    raise ConfigError(f"{experiment.path}: no trial has a finite {metric!r}; {hint}")


def reported_metrics(experiment: ExperimentView) -> list[str]:
    """Returns the names of the numbers that trials reported themselves."""
    names: dict[str, None] = {}
    for trial in experiment.trials:
        own = {key: value for key, value in trial.result.items() if key not in AUTO_RESULT_KEYS}
        names.update(dict.fromkeys(key for key, value in flatten(own).items() if number(value) is not None))
    return list(names)


def _last(trial: TrialSummary, metric: str) -> float | None:
    value = trial.result.get(metric)
    if value is None and "/" in metric:
        value = flatten(trial.result).get(metric)
    return number(value) if value is not None else None


def _analysed(
    experiment: ExperimentView, trial: TrialSummary, metric: str, mode: str, scope: str
) -> float | None:
    """All results in the trial's log count; a trial that reported and has no log is an error."""
    from muster.tune.analysis.result_files import TrialFolder
    from muster.tune.analysis.trial_record import analysis_of

    if not trial.reports:
        return None
    try:
        rows = TrialFolder(experiment.trial_path(trial), experiment.filesystem).rows()
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"--scope {scope} needs the results that trial {trial.trial_id} logged: {error}. "
            "--scope last does without"
        ) from error
    return analysis_of(rows).get(metric, {}).get(mode if scope == "all" else scope)


def best_page(
    experiment: ExperimentView, count: int, form: str, asked: Mapping[str, str | None]
) -> tuple[list[str], list[str]]:
    """Returns the page, and notes about what cannot be pasted; `asked` holds metric, mode and scope."""
    metric, mode = wanted_metric(experiment, asked.get("metric"), asked.get("mode"))
    found = best_of(experiment, metric, mode, asked.get("scope") or "last")
    need_best(found, experiment, metric)
    chosen = found[:count]
    records = [_record(each, experiment, metric) for each in chosen]
    odd = {key: None for each in chosen for key in not_data(each.trial.config, for_json=form == "json")}
    remarks = [f"note: no plain data, shown as text or null: {', '.join(odd)}"] if odd else []
    if form == "json":
        return [strict_json(records, indent=2)], remarks
    if form == "yaml":
        import yaml

        text = str(yaml.safe_dump(plain(records), sort_keys=False, allow_unicode=True))
        return [text.rstrip()], remarks
    return [*_table(chosen, experiment, (metric, mode), len(found))], remarks


def _table(
    chosen: Sequence[ScoredTrial], experiment: ExperimentView, goal: tuple[str, str], total: int
) -> Iterator[str]:
    metric, mode = goal
    yield f"{experiment.name}: best {len(chosen)} of {total:,} by {metric} ({mode})"
    for rank, each in enumerate(chosen, start=1):
        trial = each.trial
        steps = trial.result.get("training_iteration")
        after = "" if steps is None else f" after {steps} iteration{'' if steps == 1 else 's'}"
        yield ""
        yield f"{rank}. {metric} = {each.value:.6g}, trial {trial.trial_id}, {trial.status}{after}"
        yield from config_lines(trial.config)
        if trial.checkpoint is not None:
            yield f"checkpoint: {trial.checkpoint.path}"


def _record(each: ScoredTrial, experiment: ExperimentView, metric: str) -> dict[str, Any]:
    trial = each.trial
    return {
        "trial_id": trial.trial_id,
        "status": trial.status,
        "metric": metric,
        "value": each.value,
        "config": dict(trial.config),
        "training_iteration": trial.result.get("training_iteration"),
        "checkpoint": None if trial.checkpoint is None else trial.checkpoint.path,
        "path": experiment.trial_path(trial),
    }


def config_lines(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields a config as Python text, one key per line when it is long."""
    text = repr(dict(config))
    if len(text) <= 76:
        yield text
        return
    yield "{"
    yield from (f"    {key!r}: {value!r}," for key, value in config.items())
    yield "}"
