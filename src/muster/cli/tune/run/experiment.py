"""Turn the options of `muster tune run` into a Tuner, and run, try or only show it."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import SystemClock
from muster.base.text import counted
from muster.cli.tune.best import best_of
from muster.cli.tune.experiment import ExperimentView, command_line, read_experiment
from muster.cli.tune.ls import experiment_row
from muster.cli.tune.resume import DONE, LIMITED, STOPPED, TRIALS_FAILED, fit_to_end
from muster.cli.tune.run.space import number, parse_file, parse_options, parse_yaml, read_yaml
from muster.cli.tune.run.sweep import Sweep, read_sweep
from muster.cli.tune.table import strict_json
from muster.errors import CommandError, ConfigError
from muster.host.machine import environment, program
from muster.trials.metrics import flatten
from muster.trials.model import Trial
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS
from muster.tune.commands.check import check_command, space_keys
from muster.tune.commands.command import Command
from muster.tune.commands.command import command as make_command
from muster.tune.pareto import pareto_front
from muster.tune.search.conditions import SpaceEntry, build_space, dotted, grouped, key_paths, options_of
from muster.tune.search.create import SCHEDULERS, SEARCHERS, PluginTable
from muster.tune.search.paths import GROUP, is_group

Asked = Mapping[str, Any]  # the options by name
NO_METRIC = 2  # the exit code
SAMPLES, SHOWN = 10, 3
CONDITIONAL = ("auto", "tpe", "optuna", "hyperopt")  # and random
RANDOM = ("random", "variant_generator")
_LARGER_IS_BETTER = re.compile(r"acc|score|reward|return|auc|f1|precision|recall|iou|bleu|mAP|r2")
_PLAIN = ("args", "env_args", "cwd", "grace_s", "stop_signal", "stop_command", "checkpoint", "log_limit")
_PYTHON_OPTION = re.compile(  # an argument of tune.command or RunConfig in its error messages
    rf"(?:(?:tune\.command|RunConfig)\()?\b(report|name|ok_exit_codes|{'|'.join(_PLAIN)})=('[^']*'|[-\w.]*)\)?"
)


class RunPlan(Struct, frozen=True):
    """Holds an experiment that is not started."""

    command: Command
    space: dict[str, Any]
    goals: Mapping[str, str]  # the mode of each metric
    tune: Any  # a TuneConfig
    run: Any  # a RunConfig
    resources: Mapping[str, float]

    def tuner(self) -> Any:  # noqa: ANN401 - which is public(...), and so untyped
        from muster import tune

        trainable = tune.with_resources(self.command, self.resources) if self.resources else self.command
        return tune.Tuner(trainable, param_space=self.space, tune_config=self.tune, run_config=self.run)


def run_command(words: Sequence[str], asked: Asked, report: Callable[[str], None]) -> tuple[list[str], int]:
    """Run the experiment, and return the lines to print and the exit code."""
    plan = plan_run(words, asked, report)
    if asked["dry_run"]:
        return dry_run(plan), 0
    if asked["check"]:
        return check_run(plan)
    path = f"{str(plan.run.storage_path).rstrip('/')}/{plan.run.name}"
    clock = SystemClock()
    began_at = clock.monotonic()
    try:
        lines, code = fit_to_end(plan.tuner(), path)
    except KeyboardInterrupt:
        return [f"Stopped. To continue: {program()} tune resume {quote(path)}"], STOPPED
    experiment = read_experiment(path)
    missing = [metric for metric, mode in plan.goals.items() if not best_of(experiment, metric, mode)]
    if code in (DONE, TRIALS_FAILED) and clock.monotonic() - began_at >= (asked["time_budget"] or math.inf):
        code = LIMITED
    elif code in (DONE, TRIALS_FAILED) and missing:
        code, names = NO_METRIC, " or ".join(missing)
        lines += ["", f"No trial reported {names}. --check runs one trial and shows what it reports."]
    return ([_json_end(experiment, plan.goals, code)] if asked["as_json"] else lines), code


def plan_run(words: Sequence[str], asked: Asked, report: Callable[[str], None]) -> RunPlan:
    """Return the experiment that the options describe. Raises MusterError for what would fail later."""
    sweep = read_sweep(asked["sweep"]) if asked["sweep"] else None
    for line in sweep.remarks if sweep else ():
        report(line)
    given = words[0] if len(words) == 1 else list(words) or (sweep and sweep.command)
    if not given:
        fix = "for example 'python train.py --lr {lr}'"
        raise ConfigError("muster tune run: COMMAND is missing", fix=fix)
    arguments, space = _command_arguments(asked), _space(asked, sweep)
    if sweep is not None:  # wandb.init() reads the values there
        arguments["env"] = {"WANDB_SWEEP_PARAM_PATH": "{config.wandb}", **arguments["env"]}
    try:
        command, found_by = make_command(given, **arguments), {"ray": None, "slurm": str}
        check_command(command, space_keys(space), found_by.get(asked["engine"], shutil.which))
        run = _run_config(asked, command)
    except (CommandError, ValueError) as error:
        raise ConfigError(_PYTHON_OPTION.sub(_as_option, str(error))) from error
    resources = {name: asked[f"{name}s"] for name in ("cpu", "gpu") if asked[f"{name}s"] is not None}
    goals = _goals(asked, sweep)
    tune = _tune_config(asked, sweep, space, goals)
    return RunPlan(command, space, goals, tune, run, resources)


def _as_option(written: re.Match[str]) -> str:
    """Return an argument of tune.command as it is given on the command line."""
    name = written[1].removesuffix("_s").removesuffix("_codes").replace("_", "-")
    return f"--{name} {written[2].strip(chr(39))}".rstrip()


def _command_arguments(asked: Asked) -> dict[str, Any]:
    found = {name: asked[name] for name in _PLAIN if asked[name] is not None}
    more = {"report": asked["report"], "also": (asked["also"] or "").split(",")}
    codes = (asked["ok_exit_codes"] or "0").split(",")
    if not all(code.strip().isdecimal() for code in codes):
        raise ConfigError(f"--ok-exit {','.join(codes)}: must be exit codes", fix="for example 0,3")
    found |= {"ok_exit_codes": [int(code) for code in codes], "shell": asked["shell"]}
    found["env"] = dict(_pairs("--env ", asked["env"]))
    return {**found, **{name: value for name, value in more.items() if any(value)}}


def _pairs(option: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option}{text}: must be KEY=VALUE")
        yield key, value


def _space(asked: Asked, sweep: Sweep | None) -> dict[str, Any]:
    """Join the sources; a key of --space replaces that of a file, and one of a space file that of a sweep."""
    own = parse_options(asked["space"])
    file = parse_file(asked["space_file"]) if asked["space_file"] else []
    entries: list[SpaceEntry] = []
    for source in (sweep.entries if sweep else [], file, own):
        replaced = {entry.key for entry in source}
        entries = [entry for entry in entries if entry.key not in replaced] + source
    if not entries:
        raise ConfigError("muster tune run: nothing to vary", fix="give --space, --space-file or --sweep")
    return build_space(entries)


def _tune_config(asked: Asked, sweep: Sweep | None, space: dict[str, Any], goals: Mapping[str, str]) -> Any:  # noqa: ANN401
    from muster.tune.search.variant_generator import has_unresolved_values
    from muster.tune.tune_config import TuneConfig

    grids = list(_grid_keys(space))
    is_grid = bool(grids) or not has_unresolved_values(space)
    scheduler = (asked["scheduler"], {}) if asked["scheduler"] else sweep and sweep.scheduler
    samples = asked["samples"] or (sweep and sweep.samples) or (1 if is_grid else SAMPLES)
    return TuneConfig(
        metric=[*goals] if len(goals) > 1 else "".join(goals),
        mode=[*goals.values()] if len(goals) > 1 else "".join(goals.values()),
        search_alg=_search(asked, sweep, space, grids),
        scheduler=_plugin(SCHEDULERS, "--scheduler", *scheduler) if scheduler else None,
        num_samples=samples,
        max_concurrent_trials=asked["concurrent"],
        time_budget_s=asked["time_budget"],
        cost_budget=asked["cost_budget"],
        deadline=asked["deadline"],
    )


def _grid_keys(space: Mapping[str, Any]) -> Iterator[str]:
    """Yield the last names of the keys with a grid, also of those with a condition."""
    for key, domain in space.items():
        options = options_of(domain)
        if isinstance(domain, dict) and options is not None:
            yield key.removeprefix(GROUP)
        for part in (options or ()) if is_group(key) else [domain] if isinstance(domain, dict) else ():
            yield from _grid_keys(part)


def _goals(asked: Asked, sweep: Sweep | None) -> dict[str, str]:
    """Return the mode of each metric."""
    theirs = sweep.goals if sweep else {}
    metrics = asked["metric"].split(",") if asked["metric"] else [*theirs]
    if not metrics:
        raise ConfigError("muster tune run: --metric is missing", fix="name the value to optimize")
    if not all(metrics) or len(metrics) != len({*metrics}):
        raise ConfigError(f"--metric {asked['metric']}: must be different names", fix="for example a,b")
    modes = asked["mode"].split(",") if asked["mode"] else [theirs.get(metric) for metric in metrics]
    if len(modes) != len(metrics) or not {*modes} <= {"min", "max", None}:
        what = f"--mode {asked['mode']}: must be min or max, one per metric"
        raise ConfigError(what, fix=f"for example --mode {','.join('min' for _ in metrics)}")
    for metric, mode in zip(metrics, modes, strict=True):
        if not mode and _LARGER_IS_BETTER.search(metric):
            raise ConfigError(f"--metric {metric}: needs a direction", fix="give --mode max or --mode min")
    return {metric: mode or "min" for metric, mode in zip(metrics, modes, strict=True)}


def _plugin(table: PluginTable, option: str, text: str, more: Asked) -> Any:  # noqa: ANN401
    """Return the plug-in of NAME[:K=V,..]; ConfigError for what it does not take."""
    name, _, rest = text.partition(":")
    pairs = _pairs(f"{option} {name}:", re.split(r",(?=\w+=)", rest) if rest else [])
    options = {key: parse_yaml(value, f"{option} {text}") for key, value in pairs}
    try:
        return table.create(name.lower(), name, {**options, **more}, strict=True)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"{option} {text}: {error}") from error


def _search(asked: Asked, sweep: Sweep | None, space: dict[str, Any], grids: Sequence[str]) -> Any:  # noqa: ANN401
    text = asked["search"] or ("random" if grids else sweep.search if sweep else "auto")
    name = text.partition(":")[0].lower()
    conditional = [dotted(path) for path, always in key_paths(space).items() if not always]
    if conditional and name in SEARCHERS.places and name not in (*CONDITIONAL, *RANDOM):
        what = f"{name} cannot search keys with a condition ({', '.join(conditional)})"
        raise ConfigError(f"--search {what}", fix="use optuna, hyperopt or no --search")
    if grids and name in SEARCHERS.places and name not in RANDOM:
        fix = "use choice:..., or no --search"
        raise ConfigError(f"--search {name} cannot search the grid {grids[0]}", fix=fix)
    points = {"points_to_evaluate": _points(asked["points"], space)} if asked["points"] else {}
    seed = {} if asked["seed"] is None else {"seed": asked["seed"]}
    return _plugin(SEARCHERS, "--search", text, {**points, **seed})


def _points(file: Path, space: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [grouped(space, dict(point)) for point in read_yaml(file, "--points", list)]
    except (TypeError, ValueError) as error:
        fix = "for example [{lr: 0.1}]"
        raise ConfigError(f"--points {file}: must be a list of configs", fix=fix) from error


def _run_config(asked: Asked, command: Command) -> Any:  # noqa: ANN401
    from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig
    from muster.tune.execution.paths import dated_name

    if asked["retries"] and asked["fail_fast"]:
        raise ConfigError("--retries and --fail-fast: give one of them")
    stop = {key: number(value, f"--stop {key}={value}") for key, value in _pairs("--stop ", asked["stop"])}
    return RunConfig(
        name=asked["name"] or dated_name(command.name, SystemClock().now(), environment()),
        storage_path=asked["storage"],
        failure_config=FailureConfig(max_failures=asked["retries"] or 0, fail_fast=asked["fail_fast"]),
        checkpoint_config=CheckpointConfig(num_to_keep=asked["keep"]),
        verbose=0 if asked["as_json"] or asked["check"] else None,
        stop=stop or None,
        engine=asked["engine"] or "auto",
        trial_time_limit_s=asked["trial_time_limit"],
        price_per_hour=asked["price_per_hour"],
    )


def first_trials(plan: RunPlan, count: int) -> list[Trial]:
    """Return the trials that would be the first; nothing is started."""
    from muster.tune.execution.assemble import search_of, template_of

    search, _ = search_of(plan.tune, template_of(plan.command, plan.space, plan.tune, plan.run))
    return [trial for trial in (search.next_trial() for _ in range(count)) if trial is not None]


def dry_run(plan: RunPlan) -> list[str]:
    """Return the commands of the first trials, and what would be read of them."""
    lines = []
    for trial in first_trials(plan, SHOWN):
        places = {"trial_id": trial.trial_id, "trial_name": str(trial), "experiment": plan.run.name}
        lines.append(command_line(plan.command, trial.config, places))
    ways = ", ".join(map(str, plan.command.report))
    goals = ", ".join(f"{metric} ({mode})" for metric, mode in plan.goals.items())
    return [*lines, f"{counted(len(lines), 'command')}; results: {ways}; {goals}"]


def check_run(plan: RunPlan) -> tuple[list[str], int]:
    """Run one trial in a temporary directory, and return what it reported and the exit code."""
    (first,) = first_trials(plan, 1)
    goal = type(plan.tune)(metric=plan.tune.metric, mode=plan.tune.mode)
    plan.run.storage_path = tempfile.mkdtemp(prefix="muster-")
    replace(plan, space=first.config, tune=goal).tuner().fit()
    experiment = read_experiment(os.path.join(plan.run.storage_path, plan.run.name))
    trial = experiment.trials[0]
    found = {key: value for key, value in trial.result.items() if key not in AUTO_RESULT_KEYS}
    lines = [
        f"command: {command_line(plan.command, trial.config, {})}",
        f"trial: {trial.status}, {counted(trial.reports, 'result')}",
        f"found: {', '.join(f'{key}={value}' for key, value in found.items()) or 'nothing'}",
        f"in {experiment.trial_path(trial)}",
    ]
    return lines, DONE if trial.failure is None else TRIALS_FAILED if found else NO_METRIC


def _json_end(experiment: ExperimentView, goals: Mapping[str, str], code: int) -> str:
    best = best_of(experiment) if len(goals) == 1 else []
    record = {**experiment_row(experiment), "exit_code": code, "config": None, "command": None}
    if len(goals) > 1:
        rows = [[flatten(trial.result).get(metric) for metric in goals] for trial in experiment.trials]
        front = pareto_front(rows, [*goals.values()])
        record["pareto_front"] = [experiment.trials[place].trial_id for place in front]
    if best:
        record["best_trial"], record["config"] = best[0].trial.trial_id, dict(best[0].trial.config)
        record["command"] = experiment.command_line(best[0].trial)
    return strict_json(record)
