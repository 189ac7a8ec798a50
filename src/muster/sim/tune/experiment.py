"""Build everything that one experiment needs, on the simulated engine; again for each run.

The composition root of simulated tuning, for benchmarks, tests and `muster sim tune`. Connects searcher,
scheduler, stopper, store and engine as a launch does, and decides nothing about trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.errors import StoreError, TuneError
from muster.sim.tune.engine import SimulatedEngine
from muster.sim.tune.trial import Costs, Curve, Report
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.metrics import is_number
from muster.trials.model import CheckpointPolicy, FailurePolicy, Trial, TrialPolicies
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.plugins import Plugins, SearchPlugin
from muster.trials.ports import TrialStore
from muster.trials.template import Limits, Settings, TrialTemplate
from muster.tune.config import RunConfig
from muster.tune.execution.assemble import scheduler_of, search_of, stopper_of
from muster.tune.stopper.function_stopper import resolve_stop
from muster.tune.tune_config import TuneConfig

NAME = "simulated"
ONE_CPU = PlacementGroupFactory([{"CPU": 1}])
_KEEP_TWO = CheckpointPolicy(num_to_keep=2)
_FREE = Costs()
_NO_LIMITS = Limits()
_MAX_IDLE_STEPS = 5  # without anything under way: schedulers may be asked more than once


class StuckExperiment(TuneError):
    """StuckExperiment means that nothing is running or will start, yet the experiment is not over."""


@dataclass(frozen=True, kw_only=True)
class SimulatedExperiment:
    """A request; factories, because each run has its own plug-ins.

    `make_search` returns a Searcher or a SearchPlugin; None: grid and random search with `seed`.
    """

    curve: Curve | Report
    space: Mapping[str, Any]
    metric: str | list[str]
    mode: str | list[str]
    num_samples: int
    workers: int = 8
    make_scheduler: Callable[[], Any] = lambda: None
    make_search: Callable[[], Any] | None = None
    make_stop: Callable[[], Any] = lambda: None  # as RunConfig(stop=...)
    max_t: int | None = None  # of every trial; None: its scheduler or its code ends it
    max_failures: int = 0
    max_concurrent: int = 0
    reuse_actors: bool = False
    resources: PlacementGroupFactory = ONE_CPU
    checkpoint_policy: CheckpointPolicy = _KEEP_TWO
    costs: Costs = _FREE
    deadline_s: float = math.inf
    limits: Limits = _NO_LIMITS
    price_per_hour: float | None = None  # of all workers together
    seed: int = 0
    ahead: int | None = None  # trials asked for ahead of room; None: as a launch would
    constraints: Mapping[str, float] | None = None  # as TuneConfig(constraints=...)
    given_template: TrialTemplate | None = None  # of a user's Tuner: its policies, criteria and names

    def template(self) -> TrialTemplate:
        """Return the template of the trials."""
        if self.given_template is not None:
            return self.given_template
        criterion = dict(resolve_stop(self.make_stop()).criteria)
        if self.max_t is not None:
            criterion.setdefault("training_iteration", self.max_t)
        return TrialTemplate(
            trainable_name=NAME,
            param_space=dict(self.space),
            num_samples=self.num_samples,
            resources=self.resources,
            stopping_criterion=criterion,
            policies=TrialPolicies(max_failures=self.max_failures, checkpoint_policy=self.checkpoint_policy),
        )

    def capacity(self) -> dict[str, float]:
        """Return the room for `workers` trials."""
        return {name: amount * self.workers for name, amount in self.resources.required_resources.items()}

    def begin(self, store: TrialStore | None = None) -> SimulatedRun:
        """Return a run that has not started."""
        return SimulatedRun(self, store or NullTrialStore())

    def run(self, store: TrialStore | None = None) -> SimulatedRun:
        """Run to the end; StuckExperiment when the end is not reached."""
        return self.begin(store).run()

    def tune_config(self) -> TuneConfig:
        """Return the TuneConfig with new plug-ins."""
        return TuneConfig(
            metric=self.metric,
            mode=self.mode,
            num_samples=self.num_samples,
            scheduler=self.make_scheduler(),
            search_alg=self._search(),
            reuse_actors=self.reuse_actors,
            constraints=self.constraints,
        )

    def goal(self) -> tuple[str, str]:
        """Return metric and mode; the first of several."""
        if isinstance(self.metric, str):
            return self.metric, str(self.mode)
        return self.metric[0], self.mode[0]

    def _search(self) -> Any:  # noqa: ANN401 - a SearchPlugin
        from muster.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher, SearchGenerator

        if self.make_search is None:
            return BasicVariantGenerator(
                max_concurrent=self.max_concurrent, random_state=self.seed, id_prefix="sim"
            )
        made = self.make_search()
        if isinstance(made, Searcher):
            if self.max_concurrent:
                made = ConcurrencyLimiter(made, max_concurrent=self.max_concurrent)
            return SearchGenerator(made, ids=CountingIds())
        return made


@dataclass
class NullTrialStore:
    """Counts facts and keeps none, for runs that are never resumed."""

    appended: int = 0
    snapshots: int = field(default=0, repr=False)

    def append(self, facts: Any) -> None:  # noqa: ANN401 - see TrialStore
        self.appended += len(facts)

    def snapshot(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self.snapshots += 1

    def load(self) -> Any:  # noqa: ANN401
        raise StoreError("this store keeps nothing", fix="pass a MemoryTrialStore to runs that are resumed")

    def close(self) -> None: ...


class Found(Struct, frozen=True, kw_only=True):
    """A result that was better than all before it."""

    at_s: float  # virtual seconds since the experiment began
    worker_s: float  # spent by all workers until then
    value: float
    trial_id: str
    iteration: int
    config: Mapping[str, Any]


class ImprovementHistory:
    """Keeps the improvements in order; NaN and infinity improve nothing."""

    def __init__(
        self, metric: str, mode: str, *, elapsed_s: Callable[[], float], worker_s: Callable[[], float]
    ) -> None:
        self.metric, self.mode = metric, mode
        self._sign = 1.0 if mode == "max" else -1.0
        self._elapsed_s, self._worker_s = elapsed_s, worker_s
        self._best = -math.inf
        self.found: list[Found] = []
        self.results = 0
        self.failures = 0

    @property
    def best(self) -> Found | None:
        return self.found[-1] if self.found else None

    def fire(
        self,
        hook: str,
        *,
        iteration: int,
        trials: Sequence[Trial],
        **info: Any,  # noqa: ANN401 - the arguments of callbacks
    ) -> None:
        """Implement the hooks of trials.plugins."""
        if hook == "on_trial_result":
            self.results += 1
            self._note(info["trial"], info["result"])
        elif hook == "on_trial_failure":
            self.failures += 1

    def _note(self, trial: Trial, result: Mapping[str, Any]) -> None:
        value = result.get(self.metric)
        if not is_number(value):
            return
        if self._sign * value > self._best:
            self._best = self._sign * value
            self.found.append(
                Found(
                    at_s=self._elapsed_s(),
                    worker_s=self._worker_s(),
                    value=float(value),
                    trial_id=trial.trial_id,
                    iteration=int(result["training_iteration"]),
                    config=dict(trial.config),
                )
            )


def best_at(found: Sequence[Found], moment: float, *, by: str = "at_s") -> float:
    """Return the best value known at `moment` (of `at_s` or `worker_s`); NaN before the first result."""
    known = math.nan
    for one in found:
        if getattr(one, by) > moment:
            break
        known = one.value
    return known


class SimulatedRun:
    """The experiment from one start of its driver to the next, or to its end."""

    def __init__(
        self, experiment: SimulatedExperiment, store: TrialStore, engine: SimulatedEngine | None = None
    ) -> None:
        """`engine`: one of another world; None: one with room for the experiment's workers."""
        self.experiment = experiment
        self.store = store
        self.engine = engine or SimulatedEngine(
            ManualClock(),
            experiment.capacity(),
            experiment.curve,
            costs=experiment.costs,
            price_per_hour=experiment.price_per_hour,
        )
        self.clock = self.engine.clock
        self.engine.timeline.wake_at = experiment.deadline_s
        self.history = ImprovementHistory(
            *experiment.goal(), elapsed_s=self.clock.monotonic, worker_s=self.worker_s
        )
        self.template = experiment.template()
        self.state = self._make_state()
        self.controller = TrialController(self.state, engine=self.engine, store=store, clock=self.clock)
        self.steps = 0

    def _make_state(self) -> ExperimentState:
        experiment, tune = self.experiment, self.experiment.tune_config()
        search, ahead = search_of(tune, self.template)
        plugins = Plugins(
            search=search,
            scheduler=scheduler_of(tune),
            stopper=stopper_of(tune, RunConfig(name=NAME, storage_path="/", stop=experiment.make_stop())),
            hooks=self.history,
        )
        settings = Settings(
            name=NAME,
            experiment_dir="/simulated",
            metric=experiment.metric if isinstance(experiment.metric, str) else None,
            mode=experiment.mode if isinstance(experiment.mode, str) else None,
            failure=FailurePolicy(max_failures=experiment.max_failures),
            reuse_actors=experiment.reuse_actors,
            max_pending=ahead if experiment.ahead is None else experiment.ahead,
            limits=experiment.limits,
        )
        return ExperimentState(settings, plugins, capacity=self.engine.capacity())

    @property
    def search(self) -> SearchPlugin:
        return self.state.plugins.search

    def worker_s(self) -> float:
        """Return the seconds that trials have held workers, summed over workers."""
        return self.engine.worker_s(self.experiment.workers)

    @property
    def worker_h(self) -> float:
        return self.worker_s() / 3600.0

    def run(self, most_steps: float = math.inf) -> SimulatedRun:
        """Run to the end of the experiment, or `most_steps`."""
        idle = 0
        while self.steps < most_steps and self.step():
            idle = idle + 1 if self.engine.is_idle else 0
            if idle > _MAX_IDLE_STEPS:
                raise StuckExperiment(self._stuck())
        return self

    def step(self) -> bool:
        """Run one round of the controller; False once the experiment is over."""
        self.steps += 1
        if self.experiment.limits:
            # Has the engine come back when the limits are to be looked at: a timer in virtual time.
            clock, experiment = self.clock, self.experiment
            at = self.state.wake_at(clock.now()) - clock.now() + clock.monotonic()
            self.engine.timeline.wake_at = min(at, experiment.deadline_s)
        continues = self.controller.step(0.0)  # the engine waits for what is under way, however long
        if continues and not self.state.is_stopping and self.clock.monotonic() >= self.experiment.deadline_s:
            self.state.end(self.clock.now())
            continues = self.controller.step(0.0)  # the orders leave now, before time passes
            self.engine.timeline.wake_at = math.inf
        return continues

    def _stuck(self) -> str:
        counts = dict(Counter(trial.state.value for trial in self.state.index.live.values()))
        scheduler = type(self.state.plugins.scheduler).__name__
        return (
            f"the experiment is stuck after {self.clock.monotonic():g} simulated seconds: nothing is under "
            f"way, and {scheduler} starts none of the trials that wait ({counts}); the searcher "
            f"{'has' if self.search.is_finished() else 'may have more, and has'} no trial to give"
        )
