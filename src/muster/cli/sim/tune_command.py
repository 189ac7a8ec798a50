"""From the options of `muster sim tune` to simulated experiments and their answers. Prints nothing."""

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

from muster.errors import ConfigError
from muster.sim.tune.candidates import CandidateSettings, NotInstalled, make_searcher
from muster.sim.tune.curve import Curve
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import ONE_CPU, SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS, Problem
from muster.sim.tune.trace import RecordedConfigs, RecordedCurve, read_trace
from muster.sim.tune.what_if import SchedulerResult, run_scheduler, scheduler_maker
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import TrialTemplate

if TYPE_CHECKING:
    from muster.tune.execution.launch import ExperimentSpec


DEFAULT_SAMPLES = 64
DEFAULT_SCHEDULERS = ("fifo", "asha")


@dataclass(frozen=True, kw_only=True)
class SimTuneOptions:
    """The options, as given."""

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
    """The answers, and what is worth knowing about them."""

    wish: SimTuneOptions
    answers: list[SchedulerResult] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class _Ground:
    """What all experiments of one question share."""

    curve: Curve
    problem: Problem | None
    launch: ExperimentSpec | None
    wish: SimTuneOptions

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
        return self.recorded.longest if self.recorded is not None else (self.problem or _any()).max_t

    def objective(self) -> tuple[str, str]:
        tune = self.launch.tune if self.launch is not None else None
        metric = self.wish.metric or (tune.metric if tune else None) or (self.problem and self.problem.metric)
        mode = self.wish.mode or (tune.mode if tune else None) or (self.problem and self.problem.mode)
        if not isinstance(metric, str) or not isinstance(mode, str):
            raise ConfigError(
                "what is to be optimised? Give --metric NAME and --mode min or max, or a script whose "
                "TuneConfig says them (one objective)"
            )
        return metric, mode


def _any() -> Problem:
    return next(iter(PROBLEMS.values()))


def ask(wish: SimTuneOptions) -> Reply:
    """Every scheduler on the same ground."""
    from muster.cli.sim.tune_command import launch_of

    launch = launch_of(wish.script) if wish.script is not None else None
    problem = PROBLEMS.get(wish.trace) if not os.path.exists(wish.trace) else None
    if problem is None and not os.path.exists(wish.trace):
        raise ConfigError(
            f"--trace {wish.trace}: there is no such file or directory, and no such synthetic problem; "
            f"problems: {', '.join(PROBLEMS)}"
        )
    curve = read_trace(wish.trace) if problem is None else problem.curve(wish.seed)
    ground = _Ground(curve, problem, launch, wish)
    reply = Reply(wish)
    _check_metric(ground)
    for name, make in _schedulers(ground).items():
        reply.answers.append(run_scheduler(_experiment(ground, make, reply), name))
    _remark_on_trace(ground, reply)
    return reply


def _check_metric(ground: _Ground) -> None:
    metric, _ = ground.objective()
    if ground.recorded is not None:
        known = dict.fromkeys(key for trial in ground.recorded.trials for row in trial.rows for key in row)
        if metric not in known:
            raise ConfigError(
                f"--trace {ground.wish.trace}: no row has the metric {metric!r}; recorded were: "
                f"{', '.join(known)}. Name another with --metric"
            )
    elif ground.problem is not None and metric != ground.problem.metric:
        raise ConfigError(
            f"--trace {ground.problem.name}: it reports {ground.problem.metric!r}, not {metric!r}: "
            f"give --metric {ground.problem.metric} --mode {ground.problem.mode}"
        )


def _schedulers(ground: _Ground) -> dict[str, Callable[[], Any]]:
    wish, launch = ground.wish, ground.launch
    terms = CandidateSettings(max_t=ground.max_t, eta=None, seed=wish.seed, space=ground.space)
    if wish.schedulers or launch is None:
        return {spec: scheduler_maker(spec, terms) for spec in wish.schedulers or DEFAULT_SCHEDULERS}
    given = launch.tune.scheduler
    name = given if isinstance(given, str) else type(given).__name__ if given else "FIFOScheduler"
    return {name: lambda: deepcopy(given)}


def _experiment(ground: _Ground, make: Callable[[], Any], reply: Reply) -> SimulatedExperiment:
    from muster.tune.config import seconds

    wish, launch = ground.wish, ground.launch
    metric, mode = ground.objective()
    count, make_search = _search(ground, reply)
    template = _template(ground, count)
    budget = launch.tune.time_budget_s if launch is not None else None
    limit = launch.tune.max_concurrent_trials if launch is not None else None
    stop = launch.run.stop if launch is not None else None
    return SimulatedExperiment(
        curve=ground.curve,
        space=ground.space,
        metric=metric,
        mode=mode,
        num_samples=count,
        workers=wish.workers,
        make_scheduler=make,
        make_search=make_search,
        make_stop=lambda: deepcopy(stop),
        max_concurrent=limit or 0,
        resources=_resources(template),
        costs=Costs(start_s=wish.start_s, save_s=wish.save_s),
        deadline_s=seconds(budget, "TuneConfig(time_budget_s=...)") or float("inf"),
        seed=wish.seed,
        given_template=template,
    )


def _search(ground: _Ground, reply: Reply) -> tuple[int, Callable[[], Any] | None]:
    """How many trials, and whose configs: those of the trace unless somebody suggests others."""
    wish, recorded = ground.wish, ground.recorded
    tune = ground.launch.tune if ground.launch is not None else None
    asked = wish.samples or (tune.num_samples if tune is not None else DEFAULT_SAMPLES)
    if wish.searcher is None and (tune is None or tune.search_alg is None) and recorded is not None:
        configs = [trial.config for trial in recorded.trials]
        if wish.samples and wish.samples > len(configs) and not reply.remarks:
            reply.remarks.append(
                f"note: --samples {wish.samples}, but {len(configs)} configs were recorded, each used once. "
                "--searcher random suggests others, which follow the nearest recorded one"
            )
        configs = configs[: wish.samples]
        return len(configs), lambda: RecordedConfigs(configs)
    if not ground.space:
        raise ConfigError(
            "--searcher: there is no space to search. Give a script whose Tuner has a param_space"
        )
    if wish.searcher is not None:
        return asked, _named(wish.searcher, wish.seed)
    given = tune.search_alg if tune is not None else None
    if isinstance(given, str):
        return asked, _named(given, wish.seed)
    return asked, None if given is None else lambda: deepcopy(given)


def _named(name: str, seed: int) -> Callable[[], Any] | None:
    try:
        made = make_searcher(name, seed)
    except NotInstalled as missing:
        raise ConfigError(f"--searcher {name}: {missing}") from missing
    return None if made is None else lambda: make_searcher(name, seed)


def _template(ground: _Ground, count: int) -> TrialTemplate:
    from muster.tune.execution.assemble import template_of

    launch, limit = ground.launch, {"training_iteration": ground.max_t}
    if launch is None:
        return TrialTemplate(
            trainable_name="trace",
            param_space=dict(ground.space),
            num_samples=count,
            resources=ONE_CPU,
            stopping_criterion=limit,
        )
    named = {**launch.overrides, "trainable_name": launch.trainable_name}
    made = template_of(launch.trainable, launch.param_space, launch.tune, launch.run, named)
    resources = made.resources if isinstance(made.resources, PlacementGroupFactory) else ONE_CPU
    criteria = {**limit, **made.stopping_criterion}
    return replace(made, num_samples=count, resources=resources, stopping_criterion=criteria)


def _resources(template: TrialTemplate) -> PlacementGroupFactory:
    return template.resources if isinstance(template.resources, PlacementGroupFactory) else ONE_CPU


def _remark_on_trace(ground: _Ground, reply: Reply) -> None:
    recorded = ground.recorded
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


_TRACE = "The directory of an experiment, a file with rows of its result.json, or a synthetic problem."


@click.command(name="tune")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("--trace", required=True, metavar="FILE", help=_TRACE)
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Trials at once.")
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="NAME[:PARAMETER=VALUE,...]",
    help="e.g. asha:eta=4,max_t=81; repeat it to compare. Without it: the script's, else fifo and asha.",
)
@click.option("--searcher", metavar="NAME", help="random, optuna, ...; suggests configs of its own.")
@click.option("--samples", type=click.IntRange(min=1), help="How many trials.")
@click.option("--metric", help="Where neither the script nor the problem says it.")
@click.option("--mode", type=click.Choice(["min", "max"]), help="The same.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")
@click.option("--start-s", type=click.FloatRange(min=0), default=0.0, help="Seconds that a start takes.")
@click.option("--save-s", type=click.FloatRange(min=0), default=0.0, help="Seconds that a checkpoint takes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the best value over time to a file.")
def tune_command(**told: Any) -> None:  # noqa: ANN401 - the options above
    """Answer from a trace what an experiment would have found, and when.

    Virtual time: hours of training take seconds. The trials of SCRIPT, a Python file that calls Tuner.fit()
    or tune.run(), are not run: each follows the trace instead. Without SCRIPT, options say what to ask.

    \b
    Try:
      muster sim tune --trace crossing --workers 64 --scheduler asha:eta=4 --scheduler hyperband
      muster sim tune train.py --trace ~/ray_results/my_experiment --workers 64 --scheduler asha

    Exit codes: 0 answered; 2 bad input.
    """
    from muster.cli.console import emit, remark, show
    from muster.cli.sim.tune_command import SimTuneOptions, ask
    from muster.cli.sim.view import as_document, draw, reply_pages

    as_json, plot = told.pop("as_json"), told.pop("plot")
    reply = ask(SimTuneOptions(**told))
    for text in reply.remarks:
        remark(text)
    if as_json:
        emit(as_document(reply))
    else:
        show(*reply_pages(reply))
    if plot is not None:
        draw(reply, plot)
        remark(f"plot: {plot}")


class _Reached(BaseException):
    """The script came to the launch; not an Exception, so that it does not catch it itself."""

    def __init__(self, asked: ExperimentSpec) -> None:
        self.asked = asked
        super().__init__()


def launch_of(script: Path) -> ExperimentSpec:
    """Runs the script as `python SCRIPT` would; ConfigError when it fails or never tunes anything."""
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such file. Give a Python file that builds a Tuner")
    with _no_launch(), _as_main(script):
        try:
            left = runpy.run_path(str(script), run_name="__main__")
            for tuner in _tuners(left):
                tuner.fit()
        except _Reached as reached:
            return reached.asked
        except SystemExit as error:
            raise ConfigError(f"{script}: ended itself ({error}) before it called fit()") from error
        except Exception as error:  # a user's script may raise anything
            raise ConfigError(
                f"{script}: failed before it called fit(): {type(error).__name__}: {error}"
            ) from error
    raise ConfigError(f"{script}: calls neither Tuner.fit() nor tune.run(), and leaves no Tuner behind")


def _tuners(left: dict[str, Any]) -> list[Any]:
    """For a script that only builds one."""
    from muster.tune.tuner import Tuner

    return [value for value in left.values() if isinstance(value, Tuner)]


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
    """Its neighbours can be imported, and it has no arguments."""
    path, arguments = list(sys.path), sys.argv
    sys.path.insert(0, str(script.resolve().parent))
    sys.argv = [str(script)]
    try:
        yield
    finally:
        sys.path[:], sys.argv = path, arguments
