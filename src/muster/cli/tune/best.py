"""Implement `muster tune best` and `compare`: the best trials of one experiment, and of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import basename
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from muster.cli.tune.experiment import ExperimentView
from muster.cli.tune.table import cell, lay_out, not_data, notes, page_size, plain, strict_json
from muster.errors import ConfigError
from muster.stores.experiment.summary import TrialSummary
from muster.trials.metrics import flatten, rank_key
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.analysis.tables import best_scored, no_single_best, number
from muster.tune.pareto import violations

if TYPE_CHECKING:
    from muster.tune.analysis import ExperimentAnalysis

OF_A_RUN = ("cpus", "gpus", "ngpus", "port")  # placeholders of a command that `best --command` cannot fill


class ScoredTrial(Struct, frozen=True):
    """A trial with the value it is compared by."""

    trial: TrialSummary
    value: float


def best_of(
    experiment: ExperimentView, metric: str | None = None, mode: str | None = None, scope: str = "last"
) -> list[ScoredTrial]:
    """Return the trials with a finite value, the best first; those that violate a constraint come last."""
    metric, mode = wanted_metric(experiment, metric, mode)
    found, constraints = [], experiment.settings.get("constraints") or {}
    for trial in experiment.trials:
        value = _last(trial, metric) if scope == "last" else _analysed(experiment, trial, metric, mode, scope)
        if value is not None and (key := rank_key(value, mode)) is not None:
            violates = bool(constraints) and any(violations(flatten(trial.result), constraints))
            found.append(((violates, key), ScoredTrial(trial, value)))
    return [each for _, each in sorted(found, key=lambda ranked: ranked[0])]


def wanted_metric(experiment: ExperimentView, metric: str | None, mode: str | None) -> tuple[str, str]:
    """Return metric and mode: the options, else the experiment's own. Raises ConfigError without both."""
    chosen = metric or experiment.metric
    several = no_single_best(experiment.settings.get("metric"), experiment.settings.get("mode"))
    if not chosen and several:
        raise ConfigError(f"{experiment.path}: {several}", fix="or give --metric and --mode")
    if not chosen:
        known = reported_metrics(experiment)
        hint = f"it reported {', '.join(known)}" if known else "and no trial reported anything yet"
        raise ConfigError(f"{experiment.path}: no metric is set in it", fix=f"give --metric ({hint})")
    mode = mode or (experiment.mode if metric in (None, experiment.metric) else None)
    if not mode:
        raise ConfigError(f"--metric {chosen}: give --mode min or --mode max with it")
    return chosen, mode


def need_best(found: Sequence[ScoredTrial], experiment: ExperimentView, metric: str) -> None:
    """Return the best trials. Raises ConfigError, naming what was reported, when there is none."""
    if found:
        return
    known = reported_metrics(experiment)
    if metric in known:
        hint = "all its values are NaN or infinite"
    else:
        hint = f"reported are {', '.join(known)}" if known else "no trial reported a number"
    raise ConfigError(f"{experiment.path}: no trial has a finite {metric!r}", fix=f"{hint}")


def reported_metrics(experiment: ExperimentView) -> list[str]:
    """Return the names of the numbers that trials reported themselves."""
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
    from muster.tune.analysis.trial_record import analysis_of

    if not trial.reports:
        return None
    try:
        rows = experiment.record(trial).rows()
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"--scope {scope} needs the results that trial {trial.trial_id} logged: {error}. "
            "--scope last does without"
        ) from error
    return analysis_of(rows).get(metric, {}).get(mode if scope == "all" else scope)


def best_page(
    experiment: ExperimentView, count: int, form: str, asked: Mapping[str, str | None]
) -> tuple[list[str], list[str]]:
    """Return the page, and note about what cannot be pasted; `asked` holds metric, mode and scope."""
    metric, mode = wanted_metric(experiment, asked.get("metric"), asked.get("mode"))
    found = best_of(experiment, metric, mode, asked.get("scope") or "last")
    need_best(found, experiment, metric)
    chosen = found[:count]
    if form == "command":
        lines = [experiment.command_line(each.trial) for each in chosen]
        command = experiment.command
        unknown = ", ".join(f"{{{name}}}" for name in OF_A_RUN if command is not None and command.uses(name))
        return lines, [f"note: only a running trial has a value for {unknown}: replace it"] if unknown else []
    records = [_record(each, experiment, (metric, mode), asked.get("scope") or "last") for each in chosen]
    odd = {key: None for each in chosen for key in not_data(each.trial.config, for_json=form == "json")}
    remarks = [f"note: no plain data, shown as text or null: {', '.join(odd)}"] if odd else []
    if form == "json":
        return [strict_json(records, indent=2)], remarks
    if form == "yaml":
        import yaml

        text = str(yaml.safe_dump(plain(records), sort_keys=False, allow_unicode=True))
        return [text.rstrip()], remarks
    return [*_table(records, experiment, (metric, mode), len(found))], remarks


def _table(
    records: Sequence[Mapping[str, Any]], experiment: ExperimentView, goal: tuple[str, str], total: int
) -> Iterator[str]:
    metric, mode = goal
    yield f"{experiment.name}: best {len(records)} of {total:,} by {metric} ({mode})"
    for rank, each in enumerate(records, start=1):
        steps = each["training_iteration"]
        after = "" if steps is None else f" after {steps} iteration{'' if steps == 1 else 's'}"
        yield ""
        yield f"{rank}. {metric} = {each['value']:.6g}, trial {each['trial_id']}, {each['status']}{after}"
        yield from config_lines(each["config"])
        if each["checkpoint"] is not None:
            value = each["checkpoint_value"]
            other = "" if value in (None, each["value"]) else f" ({metric} = {value:.6g})"
            yield f"checkpoint: {each['checkpoint']}{other}"


def _record(
    each: ScoredTrial, experiment: ExperimentView, goal: tuple[str, str], scope: str
) -> dict[str, Any]:
    trial = each.trial
    path, value = _checkpoint(trial, experiment, goal, scope)
    return {
        "trial_id": trial.trial_id,
        "status": trial.status,
        "metric": goal[0],
        "value": each.value,
        "config": dict(trial.config),
        "training_iteration": trial.result.get("training_iteration"),
        "checkpoint": path,
        "checkpoint_value": value,  # of the metric, when it was made
        "path": experiment.trial_path(trial),
    }


def _checkpoint(
    trial: TrialSummary, experiment: ExperimentView, goal: tuple[str, str], scope: str
) -> tuple[str | None, float | None]:
    """Return the newest checkpoint and its value of the metric; for the scope "all", the best one."""
    newest = trial.checkpoint
    if newest is None:
        return None, None
    candidates = [(newest.path, newest.metrics)]
    if scope == "all":
        kept = experiment.record(trial).best_checkpoints
        candidates += [(f"{experiment.trial_path(trial)}/{basename(c.path)}", metrics) for c, metrics in kept]
    best = best_scored([(one, one[1]) for one in candidates], *goal) or candidates[0]
    return best[0], number(flatten(best[1]).get(goal[0]))


def config_lines(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a config as Python text, one key per line when it is long."""
    text = repr(dict(config))
    if len(text) <= 76:
        yield text
        return
    yield "{"
    yield from (f"    {key!r}: {value!r}," for key, value in config.items())
    yield "}"


def experiment_analysis(experiment: ExperimentView) -> ExperimentAnalysis:
    """Return the experiment as the library sees it; nothing is unpickled for it."""
    from muster.tune.analysis import ExperimentAnalysis

    return ExperimentAnalysis(
        experiment.path,
        storage_filesystem=experiment.filesystem,
        trials=experiment.trials,
        default_metric=experiment.settings.get("metric"),
        default_mode=experiment.settings.get("mode"),
        constraints=experiment.settings.get("constraints"),
    )


class Comparison:
    """Sets experiments side by side, by one metric."""

    def __init__(self, experiments: Sequence[ExperimentView], metric: str, mode: str) -> None:
        self.experiments, self.metric, self.mode = experiments, metric, mode
        self._best = [best_of(each, metric, mode)[:1] for each in experiments]
        # The last part of a path, or all of it where that is not enough to tell them apart.
        names = [each.name for each in experiments]
        if len(set(names)) < len(names):
            names = [each.address for each in experiments]
        self._names = [
            name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, start=1)
        ]

    @classmethod
    def of(cls, paths: Sequence[str], metric: str | None, mode: str | None) -> Comparison:
        """Read the experiments; ConfigError when they are about different metrics and none is given."""
        from muster.cli.tune.experiment import read_experiment

        experiments = [read_experiment(path) for path in paths]
        goals = {wanted_metric(each, metric, mode): each for each in experiments}
        if len(goals) > 1:
            about = ", ".join(f"{each.path} {way}imises {what}" for (what, way), each in goals.items())
            raise ConfigError(f"these experiments differ in their goals: give --metric and --mode ({about})")
        return cls(experiments, *next(iter(goals)))

    def record(self) -> list[dict[str, Any]]:
        """Return one object per experiment."""
        return [
            {
                "experiment": name,
                "path": each.address,
                "state": each.state,
                "trials": len(each.trials),
                "results": sum(trial.reports for trial in each.trials),
                "seconds": _span(each),
                "metric": self.metric,
                "mode": self.mode,
                "best": best[0].value if best else None,
                "best_trial": best[0].trial.trial_id if best else None,
                "config": flatten(dict(best[0].trial.config)) if best else {},
            }
            for name, each, best in zip(self._names, self.experiments, self._best, strict=True)
        ]

    def lines(self) -> list[str]:
        """Return a table with a row per fact and a column per experiment, and who is best."""
        records = self.record()
        facts = ("state", "trials", "results", "seconds", "best", "best_trial")
        parameters = dict.fromkeys(key for record in records for key in record["config"])
        label = {"best": f"best {self.metric}", "best_trial": "best trial"}
        rows = [
            {"": label.get(fact, fact), **{each["experiment"]: cell(fact, each[fact]) for each in records}}
            for fact in facts
        ]
        rows += [
            {"": key, **{each["experiment"]: cell(key, each["config"].get(key)) for each in records}}
            for key in parameters
        ]
        layout = lay_out(rows, ("", *self._names), page_size()[0], colour=False)
        return [*layout.lines, *notes(layout), *self._winner(records)]

    def draw(self, file: Path, x: str) -> None:
        """Draw the best value so far of each. Raises ConfigError for a file that cannot be written."""
        from muster.tune.plots.overlay import progress_of, save_overlay

        if file.suffix.lower() not in (".html", ".svg", ".png"):
            raise ConfigError(f"-o {file}: the name must end in .html, .svg or .png")
        if file.suffix.lower() == ".html":
            self._write_page(file, x)
            return
        curves = [
            progress_of(experiment_analysis(each), name, self.metric, self.mode)
            for name, each in zip(self._names, self.experiments, strict=True)
        ]
        try:
            save_overlay(curves, self.metric, x, file)
        except (ImportError, OSError) as error:
            raise ConfigError(f"-o {file}: {error}") from error

    def _write_page(self, file: Path, x: str) -> None:
        from muster.page.plot_report import PlottedExperiment, plot_page

        shown = [
            PlottedExperiment(
                name=name, metric=self.metric, mode=self.mode, trials=one.trials, constraints=one.constraints
            )
            for name, one in zip(self._names, map(experiment_analysis, self.experiments), strict=True)
        ]
        start = f"#es={','.join(map(str, range(len(shown))))}{'&by=time' if x == 'time' else ''}"
        try:
            file.write_text(plot_page(shown, start), encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"-o {file}: {error}") from error

    def _winner(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        scored = [each for each in records if each["best"] is not None]
        if len(scored) < 2:
            return []
        first, second = sorted(scored, key=lambda each: each["best"], reverse=self.mode == "max")[:2]
        if first["best"] == second["best"]:
            return ["", f"{first['experiment']} and {second['experiment']} are equal."]
        gap = abs(first["best"] - second["best"])
        return ["", f"{first['experiment']} is best: {gap:.4g} better than {second['experiment']}."]


def _span(experiment: ExperimentView) -> float | None:
    began, ended = experiment.started_at, experiment.updated_at
    return None if began is None or ended is None else round(ended - began, 3)
