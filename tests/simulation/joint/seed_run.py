"""Run one seed of the joint world: the faults of both halves, and properties of both after every tick.

The cluster is drawn as in every run, its work too; beside it tuners with drawn schedulers, trials and faults
use it. By the seed, forecasts are used, budgets and deadlines held, types fast or slow, nodes emptied,
forecasts late, tuners killed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from functools import partial
from typing import Any

from msgspec.structs import replace
from tests.simulation.checkers import Check
from tests.simulation.cluster import FaultyCluster
from tests.simulation.options import draw_options
from tests.simulation.run import SHAPES, Report, SeedRun, TraceListener
from tests.simulation.tune.chaos import random_experiment
from tests.simulation.tune.faults import FaultyEngine, FaultyRun

from muster.base.rng import Seed, Stream
from muster.cluster.budget_policy import Budget, Consolidation, ForecastPolicy
from muster.cluster.model import ClusterSpec, NodeType, health_key
from muster.cluster.plan import Reason, Verdict
from muster.cluster.states import InstanceState
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import RunOptions
from muster.sim.joint.cloud import JointCluster, SpotModel, SpotPool, SpotSeries
from muster.sim.joint.engine import JointEngine
from muster.sim.joint.tuner import JointExperiment, JointTuner, TunerGroup
from muster.sim.tune.candidates import SCHEDULERS
from muster.sim.tune.experiment import NullTrialStore
from muster.sim.tune.trial import as_curve
from muster.trials.events import Fact, TrialReported, TrialStarted
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import Limits

FAULTS: Mapping[str, tuple[float, float]] = {
    "forecast_late": (0.05, 0.5),  # per tick: no tuner publishes for this time
    "tuner_killed": (0.002, 0.02),  # per tick: a tuner's program ends, and its trials with it
}
KINDS = tuple(name for name in SCHEDULERS if name not in ("pb2", "bohb"))  # a model per decision is slow
_JUMPING = ("pbt", "pbt_synch")  # members continue from another's checkpoint
_CALM_S, _MOST_CALM_S = 240.0, 12_000.0
STALE_S = 120.0  # a forecast's time and some ticks


class RecordingStore(NullTrialStore):
    """Keeps what a tuner wrote down about results, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[TrialStarted | TrialReported] = []

    def append(self, facts: Sequence[Fact]) -> None:
        super().append(facts)
        self.facts += [fact for fact in facts if isinstance(fact, TrialStarted | TrialReported)]


def draw_joint_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed, with money on top; forecasts are mostly used."""
    options, draw = draw_options(seed), seed.derive("sim.joint.setting")
    budget = None
    if draw.random() < 0.3:
        budget = Budget(
            per_hour=draw.choice((None, 2.0, 6.0)), total=draw.choice((None, 0.5, 3.0)), period_s=None
        )
    spec = replace(
        options.spec,
        node_types=_with_speeds(seed, options.spec),
        budget=budget,
        consolidation=draw.choice(tuple(Consolidation)),
        forecasts=ForecastPolicy(
            is_used=draw.random() < 0.8,
            boot_s=draw.choice((20.0, 60.0)),
            keep_s=draw.choice((5.0, 15.0)),
            first_slots=draw.choice((1, 4, 16)),
        ),
    )
    options = replaced(options, spec=spec, min_calm_s=_CALM_S, calm_s=_MOST_CALM_S)
    options.shown = {
        **options.shown,
        "budget": None if budget is None else f"{budget.per_hour}/h {budget.total}",
        "consolidation": spec.consolidation.value,
        "forecasts": spec.forecasts.is_used,
    }
    return options


def _with_speeds(seed: Seed, spec: ClusterSpec) -> tuple[NodeType, ...]:
    """Draw how fast the types are, in a third of the runs."""
    draw = seed.derive("sim.joint.speeds")
    if draw.random() > 1 / 3:
        return spec.node_types
    return tuple(replace(known, speed=draw.choice((1.0, 1.5, 2.0))) for known in spec.node_types)


def draw_limits(draw: Stream, length_s: float) -> Limits:
    """Draw money and time of one experiment; most have neither."""
    cost_budget = draw.choice((None, None, None, 0.01, 0.2))
    deadline = draw.choice((None, None, None, 0.3 * length_s, 1.5 * length_s))
    return Limits(cost_budget=cost_budget, deadline=deadline)


def draw_pools(seed: Seed, spec: ClusterSpec) -> list[SpotPool]:
    """Draw short series for the spot offers, in half of the runs."""
    draw = seed.derive("sim.joint.pools")
    if draw.random() < 0.5:
        return []
    keys = [health_key(t.name, o.name) for t in spec.node_types for o in t.offers if o.market == "spot"]
    return [
        SpotPool(
            key, SpotSeries(30.0, tuple((draw.randint(0, 4), draw.randint(1, 20)) for _ in range(9))), 0.0
        )
        for key in keys
    ]


class JointSeedCluster(FaultyCluster, JointCluster):
    """The cluster of tuners, with everything that seeds can break."""


class FaultyJointEngine(FaultyEngine, JointEngine):
    """The engine of a joint world, with the faults of trials as well."""


class FaultyTuner(JointTuner):
    """A tuner whose trials have faults."""

    engine_class = FaultyJointEngine
    run_class = FaultyRun
    is_killed = False


class FaultyGroup(TunerGroup):
    """Tuners whose trials have faults."""

    tuner_class = FaultyTuner

    def kill(self, tuner: FaultyTuner) -> None:
        """End a tuner's program without a word: its trials go, its last forecast stays."""
        tuner.ended_at, tuner.is_killed = self._cluster.world.time, True
        tuner.engine.close()
        self._note_drivers()


class JointSeedRun(SeedRun):
    """One seed with tuners in its world."""

    cluster_class = JointSeedCluster
    command_options = " --joint"
    cluster: JointSeedCluster

    def __init__(self, seed: int, on_line: TraceListener | None = None) -> None:
        super().__init__(seed, on_line)
        _add_rates(self.seed, self.faults)
        self.stores: list[RecordingStore] = []
        speeds = {known.name: known.speed for known in self.options.spec.node_types}
        self.group = FaultyGroup(self.cluster, speed_of=speeds.__getitem__, new_store=self._new_store)
        self._kinds: dict[str, str] = {}  # experiment -> its scheduler
        self._to_begin = 0
        self.cluster.cloud.model = SpotModel(taken_within_s=60.0, notice_s=40.0, noticed_share=0.7)
        self.cluster.cloud.open_pools(self.seed, draw_pools(self.seed, self.options.spec))
        self.cluster.note_drivers(0)
        self._draw_experiments()

    def draw_options(self) -> RunOptions:
        return draw_joint_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), HeldBack(), self._tuner_checks)

    def _new_store(self) -> RecordingStore:
        self.stores.append(RecordingStore())
        return self.stores[-1]

    def _draw_experiments(self) -> None:
        draw = self.seed.derive("sim.joint.experiments")
        length_s = self.options.faulty_ticks * self.options.tick_s
        for number in range(draw.choice((1, 1, 2, 3))):
            name, kind = f"e{number}", draw.choice(KINDS)
            made = random_experiment(kind, draw.getrandbits(30))
            shape = {key: value for key, value in draw.choice(SHAPES).to_floats().items() if key != "memory"}
            limits = draw_limits(self.seed.derive(f"sim.joint.limits.{name}"), length_s)
            made = replaced(made, resources=PlacementGroupFactory([shape]), reuse_actors=False, limits=limits)
            asked = JointExperiment(name=name, experiment=made, publishes=draw.random() < 0.8)
            self._kinds[name], self._to_begin = kind, self._to_begin + 1
            self.cluster.world.after(draw.uniform(0.0, 0.5 * length_s), partial(self._begin, asked))

    def _begin(self, asked: JointExperiment) -> None:
        self._to_begin -= 1
        self.group.begin(asked)

    def _pass_time(self) -> None:
        world = self.cluster.world
        self.group.note_capacity()
        self.group.handle_news()
        if not self.faults.hit("forecast_late"):
            self.group.publish()
        end = world.time + self.options.tick_s
        while world.run_next(end):
            self.group.handle_news()
        world.advance(end - world.time)

    def _inject_faults(self) -> None:
        super()._inject_faults()
        alive = [tuner for tuner in self.group.tuners if tuner.ended_at is None]
        if alive and self.faults.hit("tuner_killed"):
            self.group.kill(self.faults.stream("tuner_killed").choice(alive))

    def _is_at_rest(self) -> bool:
        is_at_work = any(
            tuner.ended_at is None and any(placement.nodes for placement in tuner.engine.placements())
            for tuner in self.group.tuners
        )
        return not self._to_begin and not is_at_work and super()._is_at_rest()

    def _tuner_checks(self, cluster: FaultyCluster) -> Iterator[str]:
        for tuner in self.group.tuners:
            yield from _placements_are_single(cluster, tuner)
            if tuner.ended_at is not None and not tuner.is_killed:
                yield from _ended_well(tuner)
        if self.report.ticks % 20 == 0 or self._rested:
            for tuner, store in zip(self.group.tuners, self.stores, strict=True):
                yield from wrong_rows(tuner, store, is_jumping=self._kinds[tuner.asked.name] in _JUMPING)

    def _finish(self) -> Report:
        report = super()._finish()
        if report.ok:
            for tuner, store in zip(self.group.tuners, self.stores, strict=True):
                is_jumping = self._kinds[tuner.asked.name] in _JUMPING
                report.violations.extend(wrong_rows(tuner, store, is_jumping=is_jumping))
                if self._rested and tuner.ended_at is None and tuner.engine.is_idle:
                    report.violations.append(f"{tuner.asked.name}: stuck, nothing runs and nothing waits")
        return report


def _add_rates(seed: Seed, faults: Faults) -> None:
    draw = seed.derive("sim.joint.faults")
    for kind, (low, high) in FAULTS.items():
        is_on, rate = draw.random() < 0.5, draw.uniform(low, high)
        if is_on and faults.rates:
            faults.rates[kind] = round(rate, 4)


class HeldBack:
    """A check: a trial waits for its turn only while something has a place, or is about to.

    A forecast of a tuner that is gone counts until it is stale, so that for so long nothing may happen.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        waits = self._waits(cluster)
        if waits is None:
            self._since = None
            return
        now = cluster.world.time
        self._since = now if self._since is None else self._since
        if now - self._since > STALE_S:
            text = f"{waits.subject_id} waits for its turn for {now - self._since:.0f} s"
            yield f"{text}, and nothing has a place: {waits.detail}"

    def _waits(self, cluster: FaultyCluster) -> Verdict | None:
        if cluster.plan is None or cluster.plan.actions:
            return None
        if any(verdict.reason is Reason.BUDGET for verdict in cluster.plan.verdicts):
            return None
        if any(gang.placed for gang in cluster.runtime.gangs.values()):
            return None
        if any(record.state is not InstanceState.RAY_RUNNING for record in cluster.store.live.values()):
            return None
        waits = (v for v in cluster.plan.verdicts if v.reason is Reason.WAITING_FOR_TURN)
        return next(waits, None)


def _placements_are_single(cluster: FaultyCluster, tuner: JointTuner) -> Iterator[str]:
    """A trial has at most one place, and none once its tuner is over."""
    prefix = f"{tuner.asked.name}-"
    held = Counter(
        gang_id.removeprefix(prefix).rpartition("-")[0]
        for gang_id in cluster.runtime.gangs
        if gang_id.startswith(prefix)
    )
    for trial_id, count in held.items():
        if count > 1 or tuner.ended_at is not None:
            yield f"{tuner.asked.name}: trial {trial_id} holds or asks for {count} places"


def _ended_well(tuner: JointTuner) -> Iterator[str]:
    state, asked = tuner.run.state, tuner.asked.experiment
    if state.ended_by:
        limit = getattr(asked.limits, {"budget": "cost_budget", "deadline": "deadline"}[state.ended_by])
        if limit is None or state.index.with_process:
            yield f"{tuner.asked.name}: ended by its {state.ended_by} of {limit}, with trials at work or none"
    elif len(state.trials) != asked.num_samples:
        yield f"{tuner.asked.name}: {len(state.trials)} trials instead of {asked.num_samples}"
    if not state.is_finished:
        yield f"{tuner.asked.name}: over, and {len(state.index.live)} trials are not"


def wrong_rows(tuner: JointTuner, store: RecordingStore, *, is_jumping: bool) -> Iterator[str]:
    """Yield results that are lost, doubled or wrong, and a best value that is not the best of them."""
    name, asked = tuner.asked.name, tuner.asked.experiment
    last: dict[str, int] = {}
    has_started: set[str] = set()
    best = -math.inf
    sign = 1.0 if asked.mode == "max" else -1.0
    for fact in store.facts:
        if isinstance(fact, TrialStarted):
            has_started.add(fact.trial_id)
            continue
        iteration, before = fact.result["training_iteration"], last.get(fact.trial_id, 0)
        goes_back = iteration <= before and fact.trial_id not in has_started
        if goes_back or (iteration > before + 1 and not is_jumping):
            yield f"{name}: trial {fact.trial_id} reports iteration {iteration} after {before}"
        has_started.discard(fact.trial_id)
        last[fact.trial_id] = iteration
        value, expected = fact.result[asked.metric], _expected(tuner, fact.result)
        if math.isfinite(value):
            best = max(best, sign * value)
            if value != expected:
                yield f"{name}: trial {fact.trial_id} reports {value} at {iteration}, not {expected}"
    found = tuner.run.history.best
    if (found is None) != (best == -math.inf) or (found is not None and found.value != sign * best):
        yield f"{name}: the best value is {found and found.value}, of the rows it is {sign * best}"


def _expected(tuner: JointTuner, result: Mapping[str, Any]) -> Any:
    asked = tuner.asked.experiment
    return as_curve(asked.curve).metrics(result["config"], result["training_iteration"])[asked.metric]
