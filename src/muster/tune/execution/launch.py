"""Launch an experiment for `Tuner.fit` and `tune.run`.

The first process of the engine takes as long to start as the remaining imports: so it is started first, and
`experiment_run`, which assembles everything else, is imported meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.base.clock import SteadyClock, SystemClock
from muster.base.untrusted import real_ray
from muster.host.machine import answers_for_ray

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState
    from muster.trials.model import Trial
    from muster.trials.ports import Engine
    from muster.tune.analysis import ExperimentAnalysis
    from muster.tune.analysis.trial_record import TrialRecord
    from muster.tune.config import RunConfig
    from muster.tune.execution.paths import ExperimentPaths
    from muster.tune.execution.upload import Uploads
    from muster.tune.reporting.reporter import Reporter
    from muster.tune.tune_config import ResumeConfig, TuneConfig

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ExperimentSpec:
    """Everything one experiment is run with; `resume` None: a new experiment."""

    trainable_name: str
    param_space: dict[str, Any]
    tune: TuneConfig
    run: RunConfig  # has a name
    trainable: Any = None  # function or class; None: read from an experiment, or trials run by ask and tell
    code: bytes = b""  # the trainable, pickled
    resume: ResumeConfig | None = None
    overrides: dict[str, Any] = field(default_factory=dict)  # of TrialTemplate: resources, restore_path, ...
    has_new_space: bool = False  # a restore was given a space: its objects go to old trials too
    must_be_resumable: bool = True  # else a part that cannot be pickled is only warned about
    clock: SteadyClock = field(default_factory=SteadyClock)  # setting the wall clock changes no cost or limit

    @cached_property
    def place(self) -> ExperimentPaths:
        from muster.tune.execution.paths import ExperimentPaths

        return ExperimentPaths(str(self.run.storage_path), str(self.run.name), self.run.storage_filesystem)

    def uploads(self) -> Uploads | None:
        """Return what copies the files to the storage; None when they stay where they are made."""
        if not self.place.is_remote or self.run.sync_config is None:
            return None
        from muster.tune.execution.upload import Uploads

        return Uploads(self.place, self.run, self.run.sync_config, self.clock)

    @property
    def command(self) -> Any:  # noqa: ANN401 - a Command: only those who use it import its module
        """Return the command that trials run; None for a function or class."""
        from muster.tune.trainable.util import innermost

        found = innermost(self.trainable)
        return found if type(found).__module__ == "muster.tune.commands.command" else None

    @cached_property
    def references(self) -> bytes:
        """Return pickles that name large parameters: the trainable, and a space with refs of `ray.put`."""
        from muster.base import by_value

        if not answers_for_ray():
            return self.code
        with suppress(Exception):  # writing the spec names what cannot be pickled
            return self.code + by_value.dumps(self.param_space)
        return self.code


@dataclass(frozen=True, kw_only=True)
class ExperimentOutcome:
    """The final state of an experiment and the place of its files."""

    state: ExperimentState
    place: ExperimentPaths
    is_interrupted: bool
    is_uploaded: bool = True  # False: the storage lacks something that `place.directory` has

    def analysis(
        self,
        default_metric: Any,  # noqa: ANN401 - one, several or none
        default_mode: Any,  # noqa: ANN401
        constraints: Mapping[str, float] | None = None,
    ) -> ExperimentAnalysis:
        """Return results from memory, or from the storage when the files are only there."""
        from muster.tune.analysis import ExperimentAnalysis

        goal: dict[str, Any] = {"default_metric": default_metric, "default_mode": default_mode}
        place, goal = self.place, goal | {"constraints": constraints}
        if place.is_remote and self.is_uploaded:
            return ExperimentAnalysis(place.address, storage_filesystem=place.filesystem, **goal)
        return ExperimentAnalysis(place.directory, trials=self._records(), **goal)

    def _records(self) -> Sequence[Trial | TrialRecord]:
        """Return the trials, for an analysis of the files on this machine."""
        trials, place = self.state.index.order, self.place
        if not place.is_remote:
            return trials
        from dataclasses import replace

        from muster.tune.analysis.trial_record import as_record

        return [replace(as_record(each, str(place.directory)), find=place.checkpoint) for each in trials]


CHAIN = "MUSTER_CHAIN"  # names the file with the experiments of a script that runs in one job after another
_fits = count()


def begun_in_chain(spec: ExperimentSpec) -> str | None:
    """Return the experiment that this `fit` began in an earlier job of a chain; note a new one there."""
    from muster.host.machine import environment

    file = environment().get(CHAIN)
    if not file or spec.resume is not None:
        return None
    from muster.stores.experiment.reader import STORE_NAME

    number, chain = next(_fits), Path(file)
    known = chain.read_text().splitlines() if chain.exists() else []
    if number < len(known) and Path(known[number], STORE_NAME).exists():
        return known[number]
    from muster.host.atomic_write import atomic_write

    lines = [*known[:number], str(spec.place.directory)]
    atomic_write(chain, "".join(f"{line}\n" for line in lines).encode())
    return None


def launch(spec: ExperimentSpec) -> ExperimentOutcome:
    """Run an experiment to its end, or until Ctrl-C; failed trials are results too."""
    from muster.host.machine import environment

    check_variables(environment())
    with ExitStack() as stack:
        reporter, engine = _start(spec, stack)
        from muster.tune.execution.experiment_run import run_experiment

        return run_experiment(spec, stack, reporter, engine)


def _start(spec: ExperimentSpec, stack: ExitStack) -> tuple[Reporter, Engine]:
    """Start the engine before anything with a thread or a lock: its processes are copies of the first one.

    The reporter comes before the engine, because it decides where the output of trials goes.
    """
    from muster.host.machine import environment
    from muster.tune.reporting.reporter import reporter_for
    from muster.tune.trainable.util import thread_limit, trial_resources

    variables = _prepare_command(spec)
    reporter = reporter_for(spec.run, clock=SystemClock(), environment=environment())
    reporter.prints_errors = environment().get("TUNE_PRINT_ALL_TRIAL_ERRORS", "1") != "0"
    stack.callback(reporter.abort)
    resources = trial_resources(spec.trainable, spec.overrides.get("resources_per_trial"))
    with reporter.catching():
        engine = _open_engine(spec, {**thread_limit(resources, environment()), **variables}, resources)
    stack.callback(engine.close)
    return reporter, engine


def _prepare_command(spec: ExperimentSpec) -> dict[str, str]:
    """Check a trainable that is a command; return the variables of its trials."""
    if (command := spec.command) is None:
        return {}
    from shutil import which

    from muster.tune.commands.check import before_run

    is_here = spec.run.engine in ("auto", "local")
    find = None if _runs_on_ray(spec.run.engine) else which if is_here else str
    return before_run(command, spec.param_space, spec.tune, find)


def _open_engine(spec: ExperimentSpec, env: Mapping[str, str], resources: Any) -> Engine:  # noqa: ANN401
    """Open the engine that runs the trials; Ray is imported only when it is requested or already in use."""
    trainables, storage = {spec.trainable_name: spec.code}, spec.place.for_trials()
    if spec.run.engine not in ("auto", "local", "ray"):
        return _open_slurm(spec, env, resources)
    if _runs_on_ray(spec.run.engine):
        from muster.engines.ray.connect import open_ray_engine
        from muster.engines.ray.engine import RayOptions
        from muster.host.machine import environment
        from muster.tune.constants import idle_warning_in
        from muster.tune.execution.upload import reach_of

        reach = reach_of(spec.place, spec.run)
        return open_ray_engine(
            trainables=trainables,
            clock=spec.clock,
            options=RayOptions(
                env=env,
                remote_storage=reach,
                storage=storage,
                price_per_hour=spec.run.price_per_hour,
                idle_warning_s=idle_warning_in(environment()),
                limits_trials=bool(
                    spec.tune.max_concurrent_trials or getattr(spec.tune.search_alg, "max_concurrent", 0)
                ),
            ),
        )
    from muster.engines.local.engine import LocalEngine
    from muster.engines.local.worker_pool import LocalOptions

    options = LocalOptions(env=env, storage=storage, price_per_hour=spec.run.price_per_hour)
    return LocalEngine(clock=spec.clock, trainables=trainables, options=options)


def _open_slurm(spec: ExperimentSpec, env: Mapping[str, str], resources: Any) -> Engine:  # noqa: ANN401
    from muster.engines.slurm.engine import SlurmEngine, SlurmOptions
    from muster.slurm.config import SlurmConfig
    from muster.trials.placement_group import PlacementGroupFactory

    chosen = spec.run.engine
    given = chosen if isinstance(chosen, SlurmConfig) else SlurmConfig()
    is_known = isinstance(resources, PlacementGroupFactory)  # else each trial says what it needs
    return SlurmEngine(
        directory=spec.place.directory,
        clock=spec.clock,
        request=resources if is_known else PlacementGroupFactory([{"CPU": 1}]),
        trainables={spec.trainable_name: spec.code},
        options=SlurmOptions(
            config=given, env=env, storage=spec.place.for_trials(), price_per_hour=spec.run.price_per_hour
        ),
    )


def _runs_on_ray(engine: object) -> bool:
    """Return whether trials run on Ray; `auto`: when this process is connected, or RAY_ADDRESS is set."""
    if engine != "auto":
        return engine == "ray"
    from muster.host.machine import environment

    if answers_for_ray():
        return False
    is_connected = getattr(real_ray(), "is_initialized", None)  # None: a file `ray.py` of the user
    return bool(environment().get("RAY_ADDRESS")) or bool(is_connected is not None and is_connected())


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse removed variables: results would not be where expected. Warns of those without an effect."""
    from muster.tune.constants import NO_EFFECT, REMOVED, VARIABLES

    for name in VARIABLES.keys() & environment.keys():
        kind, _, why = VARIABLES[name][1].rstrip(".").partition(": ")
        if environment[name] and kind == REMOVED:
            raise DeprecationWarning(f"the environment variable {name} is no longer used: unset it and {why}")
        if environment[name] and kind == NO_EFFECT:
            logger.warning("the environment variable %s has no effect: %s", name, why)
