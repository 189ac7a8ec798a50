"""Run the tuners of a joint world: the real TrialController with schedulers and searchers, on its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import structs

from muster.base.clock import ahead_s
from muster.base.forecast import in_time_of
from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec
from muster.sim.joint.cloud import JointCluster
from muster.sim.joint.engine import JointEngine, SpeedOf
from muster.sim.tune.experiment import NullTrialStore, SimulatedExperiment, SimulatedRun
from muster.trials.forecast import forecast_of
from muster.trials.ports import TrialStore
from muster.tune.execution.forecasts import input_of


@dataclass(frozen=True, kw_only=True)
class JointExperiment:
    """An experiment, and when it starts in the world.

    A deadline among its limits is in seconds from then, as a user gives it.
    """

    name: str
    experiment: SimulatedExperiment
    start_s: float = 0.0
    publishes: bool = True  # its forecasts
    knows_limit: bool = False  # of the cluster: it asks for no more than that holds, as on Ray


def limit_of(spec: ClusterSpec) -> Resources:
    """Return how large the cluster may become, as its monitor tells drivers."""
    names = dict.fromkeys(name for known in spec.node_types for name in known.resources)
    return Resources({name: spec.most_of(name) for name in names})


class JointTuner:
    """The tuner's half of one experiment."""

    engine_class: ClassVar[type[JointEngine]] = JointEngine
    run_class: ClassVar[type[SimulatedRun]] = SimulatedRun

    def __init__(
        self, cluster: JointCluster, asked: JointExperiment, speed_of: SpeedOf, store: TrialStore
    ) -> None:
        experiment, limits = asked.experiment, asked.experiment.limits
        if limits.deadline is not None:  # by the clock of the world
            limits = structs.replace(limits, deadline=cluster.world.now() + limits.deadline)
            experiment = replace(experiment, limits=limits)
        self.asked = asked
        self.engine = self.engine_class(
            cluster, asked.name, experiment.curve, costs=experiment.costs, speed_of=speed_of
        )
        self.engine.is_priced = limits.cost_budget is not None
        if asked.knows_limit:
            self.engine.bound(limit_of(cluster.options.spec))
        self.run = self.run_class(experiment, store, self.engine)
        self._world, self._wakes_at = cluster.world, math.inf
        self.ended_at: float | None = None

    @property
    def best(self) -> float:
        found = self.run.history.best
        return math.nan if found is None else found.value

    def step(self) -> None:
        """Handle everything that is ready, until nothing follows from it."""
        facts = self.run.state.facts
        while self.ended_at is None:
            before = facts.count
            if not self.run.step():
                self.ended_at = self.run.clock.monotonic()
                self.engine.end_lingering()
            elif facts.count == before and not self.engine.has_news:
                self._wake_for_limits()
                return

    def _wake_for_limits(self) -> None:
        """Have the world come back when the limits are to be looked at, unless it will come back sooner."""
        now = self.run.clock.now()
        at = self.run.state.wake_at(now) - now + self._world.time
        if math.isfinite(at) and not self._world.time < self._wakes_at <= at:
            self._wakes_at = at
            self._world.after(at - self._world.time, self._wake)

    def _wake(self) -> None:
        if self.ended_at is None:
            self.engine.wake()

    def publish(self, cluster: JointCluster, *, is_last: bool = False) -> None:
        costs, engine = self.asked.experiment.costs, self.engine
        given = replace(
            input_of(self.run.state, self.run.clock.now()),
            experiment=self.asked.name,
            driver=self.asked.name,
            restart_s=costs.start_s + costs.restore_s,
            node_of=engine.node_of,
            unsaved_s=engine.unsaved_s,
            moved_at=engine.work.moved_at.get,
            moves=lambda trial_id: engine.work.moves.get(trial_id, 0),
        )
        forecast = forecast_of(self.run.state, given, is_over=is_last)
        cluster.board.put(in_time_of(forecast, -ahead_s(self.run.clock)))


class TunerGroup:
    """The tuners of one world, each handled when something has happened to it."""

    tuner_class: ClassVar[type[JointTuner]] = JointTuner

    def __init__(
        self,
        cluster: JointCluster,
        *,
        speed_of: SpeedOf = lambda node_type: 1.0,
        new_store: Callable[[], TrialStore] = NullTrialStore,
    ) -> None:
        self.tuners: list[JointTuner] = []
        self._cluster, self._speed_of, self._new_store = cluster, speed_of, new_store

    @property
    def is_over(self) -> bool:
        return all(tuner.ended_at is not None for tuner in self.tuners)

    def begin(self, asked: JointExperiment) -> None:
        """Start a tuner, whose forecast is there before a tick sees its trials."""
        tuner = self.tuner_class(self._cluster, asked, self._speed_of, self._new_store())
        self.tuners.append(tuner)
        self._note_drivers()
        self._handle(tuner)
        if asked.publishes and tuner.ended_at is None:
            tuner.publish(self._cluster)

    def handle_news(self) -> None:
        for tuner in self.tuners:
            if tuner.ended_at is None and tuner.engine.has_news:
                self._handle(tuner)

    def note_capacity(self) -> None:
        for tuner in self.tuners:
            if tuner.ended_at is None:
                tuner.engine.note_capacity()

    def publish(self) -> None:
        for tuner in self.tuners:
            if tuner.ended_at is None and tuner.asked.publishes:
                tuner.publish(self._cluster)

    def _handle(self, tuner: JointTuner) -> None:
        tuner.step()
        if tuner.ended_at is not None:
            if tuner.asked.publishes:
                tuner.publish(self._cluster, is_last=True)
            self._note_drivers()

    def _note_drivers(self) -> None:
        self._cluster.note_drivers(sum(tuner.ended_at is None for tuner in self.tuners))
