"""Launch: what one experiment is run with, and its start. `Tuner.fit` and `tune.run` end up here.

The engine's first process needs as long to come up as we need to import the rest: so it is started first, and
`experiment_run`, which puts everything together, is imported meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.engines.local.engine import LocalEngine
    from muster.engines.ray.engine import RayEngine
    from muster.trials.experiment import ExperimentState
    from muster.trials.model import Trial
    from muster.tune.analysis.trial_record import TrialRecord
    from muster.tune.config import ResumeConfig, RunConfig, TuneConfig
    from muster.tune.execution.paths import ExperimentPaths
    from muster.tune.reporting.reporter import Reporter

_GONE_VARIABLES = ("TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR")


@dataclass(kw_only=True)
class ExperimentSpec:
    """Everything one experiment is run with. `run` has a name; `resume` None: a new experiment."""

    trainable: Any
    trainable_name: str
    code: bytes  # the trainable, pickled
    param_space: dict[str, Any]
    tune: TuneConfig
    run: RunConfig
    resume: ResumeConfig | None = None
    overrides: dict[str, Any] = field(default_factory=dict)  # of TrialTemplate: resources, restore_path, ...
    has_new_space: bool = False  # a restore was given a space: its objects go to old trials too
    must_be_resumable: bool = True  # else a part that cannot be pickled is only warned about

    @cached_property
    def place(self) -> ExperimentPaths:
        return paths_of(self.run)


@dataclass(frozen=True, kw_only=True)
class ExperimentOutcome:
    """What became of it."""

    state: ExperimentState
    place: ExperimentPaths
    is_interrupted: bool
    is_uploaded: bool = True  # False: the storage lacks something that `place.directory` has

    def records(self) -> Sequence[Trial | TrialRecord]:
        """Its trials, for an analysis of the files on this machine."""
        trials = self.state.roster.order
        if not self.place.is_remote:
            return trials
        from dataclasses import replace

        from muster.tune.analysis.trial_record import as_record

        place = self.place
        return [replace(as_record(each, str(place.directory)), find=place.checkpoint) for each in trials]


def paths_of(run: RunConfig) -> ExperimentPaths:
    from muster.tune.execution.paths import ExperimentPaths

    return ExperimentPaths(str(run.storage_path), str(run.name), run.storage_filesystem)


def launch(asked: ExperimentSpec) -> ExperimentOutcome:
    """Run it to its end, or until Ctrl-C; failed trials are results too."""
    _refuse_gone_variables()
    with ExitStack() as stack:
        reporter, engine = _start(asked, stack)
        from muster.tune.execution.experiment_run import ExperimentRun
        from muster.tune.execution.prepare import prepare

        prepare(asked)
        return ExperimentRun(asked, stack, reporter, engine).run()


def _start(asked: ExperimentSpec, stack: ExitStack) -> tuple[Reporter, LocalEngine | RayEngine]:
    """The engine before anything with a thread or a lock: its processes are copies of its first one.

    What trials print goes where the reporter wants it, so the reporter comes before the engine.
    """
    from muster.base.clock import SystemClock
    from muster.host.machine import environment
    from muster.tune.reporting.reporter import reporter_for
    from muster.tune.trainable.util import thread_limit, trial_resources

    reporter = reporter_for(asked.run, clock=SystemClock(), environment=environment())
    stack.callback(reporter.abort)
    resources = trial_resources(asked.trainable, asked.overrides.get("resources_per_trial"))
    with reporter.catching():
        engine = _open_engine(asked, thread_limit(resources, environment()))
    stack.callback(engine.close)
    return reporter, engine


def _open_engine(asked: ExperimentSpec, env: Mapping[str, str]) -> LocalEngine | RayEngine:
    """Where trials run; Ray is imported only when it is asked for, or in use already."""
    trainables = {asked.trainable_name: asked.code}
    if _runs_on_ray(asked.run.engine):
        from muster.engines.ray.connect import open_ray_engine
        from muster.engines.ray.engine import RayOptions
        from muster.tune.execution.upload import reach_of

        reach = reach_of(asked.place, asked.run)
        return open_ray_engine(trainables=trainables, options=RayOptions(env=env, remote_storage=reach))
    from muster.base.clock import SystemClock
    from muster.engines.local.engine import LocalEngine
    from muster.engines.local.worker_pool import LocalOptions

    return LocalEngine(clock=SystemClock(), trainables=trainables, options=LocalOptions(env=env))


def _runs_on_ray(engine: str) -> bool:
    """`auto`: when this process is connected to Ray, or RAY_ADDRESS names a cluster."""
    if engine != "auto":
        return engine == "ray"
    from muster.host.machine import environment

    ray = sys.modules.get("ray")
    is_connected = getattr(ray, "is_initialized", None)  # None: somebody's file `ray.py`
    return bool(environment().get("RAY_ADDRESS")) or bool(is_connected is not None and is_connected())


def _refuse_gone_variables() -> None:
    """Who sets one expects the results there: better no run than one whose results are elsewhere."""
    from muster.host.machine import environment

    for name in _GONE_VARIABLES:
        if environment().get(name):
            raise DeprecationWarning(
                f"the environment variable {name} is not used any more: unset it and use storage_path"
            )
