"""Implement `muster sim tune`: runs simulated experiments as its options say."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from muster.cli.console import emit, output_option, remark, show
from muster.errors import ConfigError
from muster.sim.tune.candidates import CandidateSettings, NotInstalled, make_searcher
from muster.sim.tune.experiment import ONE_CPU, SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS, Problem
from muster.sim.tune.trace import RecordedConfigs, RecordedCurve, read_trace
from muster.sim.tune.trial import Costs, Curve
from muster.sim.tune.what_if import SchedulerResult, run_scheduler, scheduler_maker
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import TrialTemplate

if TYPE_CHECKING:
    from muster.tune.execution.launch import ExperimentSpec


DEFAULT_SAMPLES = 64
DEFAULT_SCHEDULERS = ("fifo", "asha")
DEFAULT_PROBLEM = next(iter(PROBLEMS.values()))


@dataclass(frozen=True, kw_only=True)
class SimTuneOptions:
    """The options of the command, as given."""

    script: Path | None
    trace: str
    workers: int
    schedulers: tuple[str, ...]
    searcher: str | None
    samples: int | None
    metric: str | None
    mode: str | None
    seed: int
    start_s: float
    save_s: float


@dataclass
class Reply:
    """Holds the answers and the notes about them."""

    options: SimTuneOptions
    answers: list[SchedulerResult] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class _SharedInput:
    """What all experiments of one question share."""

    curve: Curve
    problem: Problem | None
    launch: ExperimentSpec | None
    options: SimTuneOptions

    @property
    def recorded(self) -> RecordedCurve | None:
        return self.curve if isinstance(self.curve, RecordedCurve) else None

    @property
    def space(self) -> Mapping[str, Any]:
        if self.launch is not None and self.launch.param_space:
            return self.launch.param_space
        return self.problem.space() if self.problem is not None else {}

    @property
    def max_t(self) -> int:
        return self.recorded.longest if self.recorded is not None else (self.problem or DEFAULT_PROBLEM).max_t

    def objective(self) -> tuple[str, str]:
        given, tune = self.options, self.launch.tune if self.launch is not None else None
        metric = given.metric or (tune.metric if tune else None) or (self.problem and self.problem.metric)
        mode = given.mode or (tune.mode if tune else None) or (self.problem and self.problem.mode)
        if not isinstance(metric, str) or not isinstance(mode, str):
            raise ConfigError(
                "no metric to optimize: give --metric NAME and --mode min or max, or a script whose "
                "TuneConfig has both (one objective)"
            )
        return metric, mode


def ask(options: SimTuneOptions) -> Reply:
    """Run one simulated experiment per scheduler, all on the same curves."""
    launch = launch_of(options.script) if options.script is not None else None
    problem = PROBLEMS.get(options.trace) if not os.path.exists(options.trace) else None
    if problem is None and not os.path.exists(options.trace):
        raise ConfigError(
            f"--trace {options.trace}: no such file, directory or synthetic problem",
            fix=f"problems: {', '.join(PROBLEMS)}",
        )
    curve = read_trace(options.trace) if problem is None else problem.curve(options.seed)
    shared = _SharedInput(curve, problem, launch, options)
    reply = Reply(options)
    _check_metric(shared)
    for name, make in _schedulers(shared).items():
        reply.answers.append(run_scheduler(_experiment(shared, make, reply), name))
    _remark_on_trace(shared, reply)
    return reply


def _check_metric(shared: _SharedInput) -> None:
    metric, _ = shared.objective()
    if shared.recorded is not None:
        known = dict.fromkeys(key for trial in shared.recorded.trials for row in trial.rows for key in row)
        if metric not in known:
            raise ConfigError(
                f"--trace {shared.options.trace}: no row has the metric {metric!r}",
                fix=(f"recorded were: {', '.join(known)}. Name another with --metric"),
            )
    elif shared.problem is not None and metric != shared.problem.metric:
        raise ConfigError(
            f"--trace {shared.problem.name}: it reports {shared.problem.metric!r}, not {metric!r}: "
            f"give --metric {shared.problem.metric} --mode {shared.problem.mode}"
        )


def _schedulers(shared: _SharedInput) -> dict[str, Callable[[], Any]]:
    options, launch = shared.options, shared.launch
    terms = CandidateSettings(max_t=shared.max_t, eta=None, seed=options.seed, space=shared.space)
    if options.schedulers or launch is None:
        return {spec: scheduler_maker(spec, terms) for spec in options.schedulers or DEFAULT_SCHEDULERS}
    given = launch.tune.scheduler
    name = given if isinstance(given, str) else type(given).__name__ if given else "FIFOScheduler"
    return {name: lambda: deepcopy(given)}


def _experiment(shared: _SharedInput, make: Callable[[], Any], reply: Reply) -> SimulatedExperiment:
    from muster.tune.config import seconds

    options, launch = shared.options, shared.launch
    metric, mode = shared.objective()
    count, make_search = _search(shared, reply)
    template = _template(shared, count)
    budget = launch.tune.time_budget_s if launch is not None else None
    limit = launch.tune.max_concurrent_trials if launch is not None else None
    stop = launch.run.stop if launch is not None else None
    return SimulatedExperiment(
        curve=shared.curve,
        space=shared.space,
        metric=metric,
        mode=mode,
        num_samples=count,
        workers=options.workers,
        make_scheduler=make,
        make_search=make_search,
        make_stop=lambda: deepcopy(stop),
        max_concurrent=limit or 0,
        resources=template.resources if isinstance(template.resources, PlacementGroupFactory) else ONE_CPU,
        costs=Costs(start_s=options.start_s, save_s=options.save_s),
        deadline_s=seconds(budget, "TuneConfig(time_budget_s=...)") or float("inf"),
        seed=options.seed,
        given_template=template,
    )


def _search(shared: _SharedInput, reply: Reply) -> tuple[int, Callable[[], Any] | None]:
    """Return the number of trials and their searcher; by default the trace's own configs are used."""
    options, recorded = shared.options, shared.recorded
    tune = shared.launch.tune if shared.launch is not None else None
    asked = options.samples or (tune.num_samples if tune is not None else DEFAULT_SAMPLES)
    if options.searcher is None and (tune is None or tune.search_alg is None) and recorded is not None:
        configs = [trial.config for trial in recorded.trials]
        if options.samples and options.samples > len(configs) and not reply.remarks:
            reply.remarks.append(
                f"note: --samples {options.samples}: only {len(configs)} configs were recorded, each used "
                "once. --searcher random suggests others, which follow the nearest recorded one"
            )
        configs = configs[: options.samples]
        return len(configs), lambda: RecordedConfigs(configs)
    if not shared.space:
        raise ConfigError(
            "--searcher: there is no space to search. Give a script whose Tuner has a param_space"
        )
    if options.searcher is not None:
        return asked, _named(options.searcher, options.seed)
    given = tune.search_alg if tune is not None else None
    if isinstance(given, str):
        return asked, _named(given, options.seed)
    return asked, None if given is None else lambda: deepcopy(given)


def _named(name: str, seed: int) -> Callable[[], Any] | None:
    try:
        made = make_searcher(name, seed)
    except NotInstalled as missing:
        raise ConfigError(f"--searcher {name}: {missing}") from missing
    return None if made is None else lambda: make_searcher(name, seed)


def _template(shared: _SharedInput, count: int) -> TrialTemplate:
    from muster.tune.execution.assemble import template_of

    launch, limit = shared.launch, {"training_iteration": shared.max_t}
    if launch is None:
        return TrialTemplate(
            trainable_name="trace",
            param_space=dict(shared.space),
            num_samples=count,
            resources=ONE_CPU,
            stopping_criterion=limit,
        )
    named = {**launch.overrides, "trainable_name": launch.trainable_name}
    made = template_of(launch.trainable, launch.param_space, launch.tune, launch.run, named)
    resources = made.resources if isinstance(made.resources, PlacementGroupFactory) else ONE_CPU
    criteria = {**limit, **made.stopping_criterion}
    return replace(made, num_samples=count, resources=resources, stopping_criterion=criteria)


def _remark_on_trace(shared: _SharedInput, reply: Reply) -> None:
    recorded = shared.recorded
    if recorded is None:
        return
    if recorded.nearest:
        reply.remarks.append(
            f"note: {recorded.nearest:,} configs were not recorded and followed the nearest of "
            f"{len(recorded.trials):,} that were"
        )
    short = sum(len(trial.rows) < recorded.longest for trial in recorded.trials)
    if short:
        reply.remarks.append(
            f"note: {short:,} of {len(recorded.trials):,} recorded trials ended before iteration "
            f"{recorded.longest}: what they would have reached later is not known, so that simulated trials "
            "end there too"
        )


_TRACE = "Directory of an experiment, file with rows of its result.json, or name of a synthetic problem."


@click.command(name="tune", short_help="Replay an experiment on a trace.")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("--trace", required=True, metavar="FILE", help=_TRACE)
@click.option(
    "--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Concurrent trials."
)
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="NAME[:PARAMETER=VALUE,...]",
    help="Scheduler, e.g. asha:eta=4,max_t=81; repeatable. Default: the script's, else fifo and asha.",
)
@click.option("--searcher", metavar="NAME", help="Searcher that suggests the configs: random, optuna, ...")
@click.option("--samples", type=click.IntRange(min=1), help="Number of trials.")
@click.option("--metric", help="Metric, if neither script nor problem has one.")
@click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    help="Optimization direction, if neither script nor problem has one.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--start-s", type=click.FloatRange(min=0), default=0.0, help="Seconds to start a trial.")
@click.option("--save-s", type=click.FloatRange(min=0), default=0.0, help="Seconds to save a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@output_option(help="Write a plot of the best value over time to this file.")
def tune_command(**given: Any) -> None:  # noqa: ANN401 - the options above
    """Replay an experiment on a recorded trace in virtual time.

    Time is virtual: hours of training take seconds. The trials of SCRIPT, a Python file that calls
    Tuner.fit() or tune.run(), are not run: each follows the trace instead. Without SCRIPT the options say
    what to simulate.

    \b
    Examples:
      muster sim tune --trace crossing --workers 64 --scheduler asha:eta=4 --scheduler hyperband
      muster sim tune train.py --trace ~/ray_results/my_experiment --workers 64 --scheduler asha

    Exit codes: 0 success; 2 bad input.
    """
    from muster.cli.sim.view import as_document, draw, reply_pages

    as_json, output = given.pop("as_json"), given.pop("output")
    reply = ask(SimTuneOptions(**given))
    for text in reply.remarks:
        remark(text)
    if as_json:
        emit(as_document(reply))
    else:
        show(*reply_pages(reply))
    if output is not None:
        draw(reply, output)
        remark(f"plot: {output}")


class _Reached(BaseException):
    """The script has reached the launch. Not an Exception, so that the script does not catch it."""

    def __init__(self, asked: ExperimentSpec) -> None:
        self.asked = asked
        super().__init__()


def launch_of(script: Path) -> ExperimentSpec:
    """Run the script as `python SCRIPT` would. Raises ConfigError when it fails or never tunes anything."""
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such file. Give a Python file that builds a Tuner")
    from muster.tune.tuner import Tuner

    with _no_launch(), _as_main(script):
        try:
            left = runpy.run_path(str(script), run_name="__main__")
            for tuner in left.values():  # a script may build a Tuner and never call fit()
                if isinstance(tuner, Tuner):
                    tuner.fit()
        except _Reached as reached:
            return reached.asked
        except SystemExit as error:
            raise ConfigError(f"{script}: exited ({error}) before it called fit()") from error
        except Exception as error:  # a user's script may raise anything
            raise ConfigError(
                f"{script}: failed before it called fit(): {type(error).__name__}: {error}"
            ) from error
    raise ConfigError(f"{script}: calls neither Tuner.fit() nor tune.run(), and leaves no Tuner behind")


@contextmanager
def _no_launch() -> Iterator[None]:
    from muster.tune.execution import launch as module

    def reached(asked: ExperimentSpec) -> None:
        raise _Reached(asked)

    real = module.launch
    module.launch = reached  # type: ignore[assignment]
    try:
        yield
    finally:
        module.launch = real


@contextmanager
def _as_main(script: Path) -> Iterator[None]:
    """The script can import its neighbours, and has no arguments."""
    path, arguments = list(sys.path), sys.argv
    sys.path.insert(0, str(script.resolve().parent))
    sys.argv = [str(script)]
    try:
        yield
    finally:
        sys.path[:], sys.argv = path, arguments
