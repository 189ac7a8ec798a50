"""Run experiments and the autoscaler that serves them to their common end, event by event.

The composition root of the joint simulation, for benchmarks and quotes. Both halves are the real ones:
TrialController with schedulers and searchers, ClusterController with reconciler and planner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from muster.autoscaler.monitor import TickInterval
from muster.cluster.model import NodeKind
from muster.errors import TuneError
from muster.sim.cluster.machines import CloudMachine
from muster.sim.joint.cloud import JointCluster
from muster.sim.joint.engine import SpeedOf
from muster.sim.joint.tuner import JointExperiment, JointTuner, TunerGroup

LONGEST_S = 30 * 86_400.0
_WIND_DOWN_S = 7_200.0  # how long machines may outlive the last experiment before counting stops


class StuckWorld(TuneError):
    """StuckWorld means that nothing more happens, yet an experiment is not over."""


@dataclass
class JointResult:
    """What the machines cost, how long it took, and what came of it."""

    cost: float = 0.0  # $ of all machines, the head's until the last experiment ended
    end_s: float = 0.0  # when the last experiment ended
    node_s: float = 0.0  # of workers, while they existed
    busy_s: float = 0.0  # of them, held by trials
    repeated_s: float = 0.0
    moves: tuple[int, ...] = ()  # of each trial that lost its node, or left it before
    losses: int = 0
    taken: int = 0
    machines: int = 0
    best: dict[str, float] = field(default_factory=dict)  # per experiment

    @property
    def lost_share(self) -> float:
        """Return the part of the node-seconds that was repeated."""
        return self.repeated_s / self.node_s if self.node_s else 0.0


class JointRun:
    """Runs until every experiment is over and its machines are gone."""

    def __init__(
        self,
        cluster: JointCluster,
        experiments: Sequence[JointExperiment],
        *,
        speed_of: SpeedOf = lambda node_type: 1.0,
        publish_s: float = 10.0,
        interval: TickInterval | None = None,
    ) -> None:
        """`interval`: ticks, with forecasts, follow each other as those of a monitor do; None: evenly."""
        self.cluster, self.world = cluster, cluster.world
        self.group = TunerGroup(cluster, speed_of=speed_of)
        self.after_tick: Callable[[], None] = lambda: None
        self._waiting, self._publish_s, self._interval = len(experiments), publish_s, interval
        self._ticks, self._urgent = 0, (0, 0, 0)
        self._soonest = self._due = 0.0
        for asked in experiments:
            self.world.after(asked.start_s, partial(self._begin, asked))
        self._tick_in(0.0)
        if interval is None:
            self.world.after(publish_s, self._publish)

    @property
    def tuners(self) -> list[JointTuner]:
        return self.group.tuners

    @property
    def is_over(self) -> bool:
        return not self._waiting and self.group.is_over

    def run(self, limit_s: float = LONGEST_S) -> JointResult:
        """Run to the end; StuckWorld when an experiment has not ended by `limit_s`."""
        while not self.is_over:
            self.step(limit_s)
        end_s = max((tuner.ended_at or 0.0 for tuner in self.tuners), default=0.0)
        until = self.world.time + _WIND_DOWN_S
        while any(machine.exists for machine in self._workers()) and self.world.run_next(until):
            self._tick_early()
        return self._result(end_s)

    def step(self, limit_s: float = LONGEST_S) -> None:
        """Run the next event of the world, and what the tuners do about it."""
        if not self.world.run_next(limit_s):
            raise StuckWorld(self._stuck(limit_s))
        self.group.handle_news()
        self._tick_early()

    def _begin(self, asked: JointExperiment) -> None:
        self._waiting -= 1
        self.group.begin(asked)

    def _tick(self) -> None:
        if self._interval is not None:
            self.group.publish()
        self.cluster.tick()
        self.after_tick()
        self.cluster.store.commits.clear()
        self.group.note_capacity()
        self._urgent = self._urgent_now()
        self._soonest = self.world.time + self.cluster.options.tick_s
        seen, pause_s = self.cluster.result, self.cluster.options.tick_s
        if self._interval is not None and seen is not None and seen.is_observed:
            pause_s = self._interval.after(seen)
        self._tick_in(pause_s)

    def _tick_in(self, seconds: float) -> None:
        """Plan the next tick; one that was planned before does not happen."""
        self._ticks, self._due = self._ticks + 1, self.world.time + seconds
        number = self._ticks
        self.world.after(seconds, lambda: self._tick() if number == self._ticks else None)

    def _tick_early(self) -> None:
        """Bring the next tick forward when demand, nodes or places have changed, as a monitor does."""
        if self._interval is not None and self._due > self._soonest and self._urgent_now() != self._urgent:
            self._tick_in(max(0.0, self._soonest - self.world.time))
            self._soonest = self._due  # once, however the sum was rounded

    def _urgent_now(self) -> tuple[int, int, int]:
        runtime = self.cluster.runtime
        return len(runtime.pending_gangs()), len(runtime.live_nodes()), len(runtime.gangs)

    def _publish(self) -> None:
        self.group.publish()
        self.world.after(self._publish_s, self._publish)

    def _workers(self) -> list[CloudMachine]:
        return [m for m in self.cluster.cloud.machines.values() if m.kind is NodeKind.WORKER]

    def _result(self, end_s: float) -> JointResult:
        now, workers, engines = self.world.time, self._workers(), [tuner.engine for tuner in self.tuners]
        heads = [m for m in self.cluster.cloud.machines.values() if m.kind is NodeKind.HEAD]
        lives = [(now if m.ended_at is None else m.ended_at) - m.created_at for m in workers]
        moves = [count for engine in engines for count in engine.work.moves.values()]
        return JointResult(
            cost=sum(m.cost(now) for m in workers) + sum(m.price_per_hour for m in heads[:1]) * end_s / 3600,
            end_s=end_s,
            node_s=sum(lives),
            busy_s=sum(engine.worker_s(1) for engine in engines),
            repeated_s=sum(engine.work.repeated_s for engine in engines),
            moves=tuple(moves),
            losses=sum(engine.work.losses for engine in engines),
            taken=self.cluster.cloud.taken,
            machines=len(workers),
            best={tuner.asked.name: tuner.best for tuner in self.tuners},
        )

    def _stuck(self, limit_s: float) -> str:
        names = ", ".join(tuner.asked.name for tuner in self.tuners if tuner.ended_at is None)
        return (
            f"after {limit_s:g} simulated seconds these experiments are not over: {names or 'not begun'}; "
            "give the cluster machines that hold their trials, or a longer limit"
        )
