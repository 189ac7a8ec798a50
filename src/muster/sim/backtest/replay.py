"""Replay a recording in virtual time: the real controller over a cloud with the observed boot times.

A variant is another configuration, other prices, or recorded series of spot machines; a start shifts the work
against the ticks and the series, and draws other boot times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import median
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.monitor import TickInterval
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, Constraint, Demand, FailureKind, Offer, Strategy, health_key
from muster.errors import StoreError
from muster.sim.backtest.recording import ASSUMED_BOOT_S, ASSUMED_END_S, Recording, Timings
from muster.sim.backtest.work import UNKNOWN_S, GangOfWork, Work
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import RunOptions, catalogue_for
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import GangWork, SimNode, TaskClass
from muster.sim.cluster.world import World
from muster.sim.joint.cloud import SpotModel, SpotSeries

SHIFT_S = 60.0  # starts differ by up to so much against the ticks
MOST_TICKS = 6_000  # of one replay, about: longer recordings have ticks further apart
SLOWEST_TICK_S = 10.0
SAMPLES = 400  # of the curve of spend
_LEFT = "waits at the end"


class Variant(Struct, frozen=True, kw_only=True):
    """What one replay is run under."""

    name: str
    specs: tuple[tuple[float, ClusterSpec], ...]  # from when on each holds; the first from the beginning
    spot: tuple[SpotSeries, ...] = ()  # (): machines are lost as often as in the recording


class ReplayResult(Struct, frozen=True, kw_only=True):
    """What one start of a variant came to."""

    cost: float  # within the time of the recording
    late_cost: float  # after it, until the last work was done
    late_s: float
    done: float  # share of the work that was done within the time of the recording
    node_hours: float  # within it
    wait_p50_s: float
    wait_p95_s: float
    interruptions: int  # requests that had to start again
    machines: int  # launched
    unfinished: int  # requests that were never done
    spend: tuple[tuple[float, float], ...] = ()  # seconds, $


class SpotPools:
    """SpotPools gives every pool a series, always the same, and a start in it by the seed."""

    def __init__(self, series: tuple[SpotSeries, ...], seed: Seed) -> None:
        self._series, self._seed = series, seed

    def level(self, pool: str, time_s: float) -> tuple[int, float]:
        """Return how many machines the pool has at this time, and for how long."""
        chosen = Seed(0).derive(f"spot.{pool}").choice(self._series)
        offset_s = self._seed.derive(f"spot.start.{pool}").uniform(0.0, chosen.length_s)
        return chosen.at(offset_s + time_s)


class ReplayCloud(SimCloud):
    """Boots and ends machines as was observed, and has only the spot machines of the series."""

    timings: Timings = Timings()
    losses: Mapping[str, float] = {}
    pools: SpotPools | None = None

    def boot(self, machine: CloudMachine, in_s: float) -> None:
        seen = self.timings.sample(self.timings.boot_s, machine.node_type)
        super().boot(machine, self._draw.choice(seen) if seen else in_s)
        rate = self.losses.get(_pool_of(machine), 0.0)
        if rate and not self._is_spot(machine.node_type, machine.offer):
            self._world.after(self._draw.expovariate(rate / 3600.0), partial(self.end, machine, "preempted"))

    def refusal(self, node_type: str, offer: Offer | None = None) -> FailureKind | None:
        if self._is_spot(node_type, offer) and self.pools is not None:
            pool = health_key(node_type, offer.name if offer is not None else "")
            level, _ = self.pools.level(pool, self._world.time)
            if len(self.of_pool(pool)) >= level:
                return FailureKind.CAPACITY
        return super().refusal(node_type, offer)

    def of_pool(self, pool: str) -> list[CloudMachine]:
        """Return the machines of a pool, oldest first."""
        return [one for one in self.alive() if not one.leaving and _pool_of(one) == pool]

    def spot_pools(self) -> Iterator[str]:
        """Yield every pool of spot machines that is on sale."""
        for known in self.sells.types.values():
            for offer in known.offers or (None,):
                if self._is_spot(known.name, offer):
                    yield health_key(known.name, offer.name if offer is not None else "")

    def _is_spot(self, node_type: str, offer: Offer | None) -> bool:
        known = self.sells.types.get(node_type)
        market = offer.market if offer is not None else known.market if known is not None else ""
        return self.pools is not None and market == "spot"


class ReplayRuntime(SimRuntime):
    """Counts the work that has to start again."""

    interrupted = 0

    def kill_node(self, node: SimNode) -> None:
        if node.alive:
            self.interrupted += len({id(task.gang or task) for task in node.running.values()})
        super().kill_node(node)


class ReplayCluster(SimulatedCluster):
    """Has a ReplayCloud, and counts interrupted work."""

    cloud_class: ClassVar[type[SimCloud]] = ReplayCloud
    runtime_class: ClassVar[type[SimRuntime]] = ReplayRuntime


class Replay:
    """Runs one variant from one start."""

    def __init__(
        self, recording: Recording, variant: Variant, start: int, tick_s: float | None = None
    ) -> None:
        self._recording, self._variant, self._seed = recording, variant, Seed(start)
        self.tick_s = tick_s or tick_of(recording)
        self._shift_s = self._seed.derive("backtest.shift").uniform(0.0, SHIFT_S) if start else 0.0
        self._cluster = self._build()
        self._spend: list[tuple[float, float]] = []
        self._end_s = recording.length_s + self._shift_s
        self._within: tuple[float, float, float] | None = None
        for at, spec in variant.specs[1:]:
            self._cluster.world.after(at - recording.since, partial(self._configure, playable(spec)))
        self._schedule_work()
        self._place_machines()
        cloud = self._cluster.cloud
        if isinstance(cloud, ReplayCloud) and cloud.pools is not None:
            for pool in cloud.spot_pools():
                self._follow_pool(cloud, cloud.pools, pool)

    def run(self) -> ReplayResult:
        """Run until the recording is over and its work is done."""
        cluster, interval = self._cluster, TickInterval(self.tick_s, max(5.0, self.tick_s))
        give_up_s = 2.0 * self._end_s + 3600.0
        while True:
            cluster.tick()
            cluster.store.commits.clear()
            result = cluster.result
            if result is None or not result.is_observed:
                raise StoreError(f"variant {self._variant.name}: {cluster.problem or 'a tick failed'}")
            every_s = self._recording.length_s / SAMPLES
            if not self._spend or self._cluster.world.time - self._spend[-1][0] >= every_s:
                self._spend.append((round(self._cluster.world.time, 1), round(self._cluster.spent(), 4)))
            if self._within is None and cluster.world.time >= self._end_s:
                self._within = self._measure()
            if self._is_over() or cluster.world.time > give_up_s:
                return self._result()
            self._wait(interval.after(result))

    # -- what is there -----------------------------------------------------------------------------

    def _build(self) -> ReplayCluster:
        spec, timings = playable(self._variant.specs[0][1]), self._recording.timings
        sells = catalogue_for(spec)
        sells.types = {known.name: known for known in spec.node_types}
        sells.reports_offers, sells.boot_s = True, ASSUMED_BOOT_S
        requests = [each for seen in timings.request_s.values() for each in seen]
        if requests:
            sells.api_s = max(0.0, median(requests) - self.tick_s / 2.0)
        ends = sorted(each for seen in timings.end_s.values() for each in seen)
        sells.shutdown_s = (ends[len(ends) // 4], ends[3 * len(ends) // 4]) if ends else ASSUMED_END_S
        options = RunOptions(spec=spec, catalogue=sells, tick_s=self.tick_s)
        world = World(self._recording.since)
        cluster = ReplayCluster(self._seed, options, Faults.none(), world=world)
        cloud = cluster.cloud
        if isinstance(cloud, ReplayCloud):
            cloud.timings, cloud.losses = timings, self._recording.losses()
            cloud.pools = SpotPools(self._variant.spot, self._seed) if self._variant.spot else None
        return cluster

    def _configure(self, spec: ClusterSpec) -> None:
        sells = self._cluster.cloud.sells
        sells.types.update({known.name: known for known in spec.node_types})
        sells.prices.update(catalogue_for(spec).prices)
        self._cluster.spec.spec = spec

    def _place_machines(self) -> None:
        """Begin with the machines that were there, as far as the variant has their types."""
        cluster = self._cluster
        for one in self._recording.there_at_start():
            known = cluster.options.spec.node_type(one.node_type)
            if known is None:
                continue
            machine = cluster.cloud.create(one.node_type, offer=known.offer(one.offer_name))
            machine.up = True
            cluster.join(machine)

    # -- what happens ------------------------------------------------------------------------------

    def _schedule_work(self) -> None:
        trace, runtime = self._recording.work, self._cluster.runtime
        lengths = trace.lengths()
        usual_s = median(lengths.values()) if lengths else UNKNOWN_S
        for arrived, works in groupby(trace.works, key=lambda one: one.arrived):
            batch = [self._task(one, lengths.get(one.like, usual_s)) for one in works]
            self._at(arrived, partial(runtime.submit_all, batch))
        for gang in trace.gangs:
            self._at(gang.arrived, partial(self._submit_gang, gang, usual_s))
        for at, constraints in trace.constraints:
            self._at(at, partial(self._constrain, constraints))
        self._at(self._recording.until, lambda: self._withdraw(_LEFT))

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        self._cluster.world.after(at - self._recording.since + self._shift_s, happen)

    def _task(self, work: Work, usual_s: float) -> tuple[TaskClass, float]:
        """What was withdrawn has a name, by which it can be withdrawn again."""
        name = ""
        if work.started is None:
            name = _LEFT if work.ended is None else f"withdrawn at {work.ended:.0f}"
            if work.ended is not None:
                self._at(work.ended, partial(self._withdraw, name))
        length_s = usual_s if work.duration_s is None else work.duration_s
        return TaskClass(work.like.shape, work.like.selectors, name), length_s

    def _withdraw(self, name: str) -> None:
        self._cluster.runtime.withdraw(name)
        if name == _LEFT:
            for gang in self._cluster.runtime.pending_gangs():
                if gang.gang_id in self._unserved:
                    del self._cluster.runtime.gangs[gang.gang_id]

    @property
    def _unserved(self) -> frozenset[str]:
        return frozenset(one.gang_id for one in self._recording.work.gangs if one.started is None)

    def _submit_gang(self, gang: GangOfWork, usual_s: float) -> None:
        runtime = self._cluster.runtime
        bundles = [
            runtime.bundle(demand.shape, demand.selectors)
            for demand, count in gang.gang.bundles
            for _ in range(count)
        ]
        is_known = gang.started is not None and gang.ended is not None
        length_s = (gang.ended or 0.0) - (gang.started or 0.0) if is_known else usual_s
        if bundles:
            strategy = Strategy(gang.gang.strategy)
            runtime.submit_gang(GangWork(gang.gang_id, strategy, bundles, max(0.0, length_s)))

    def _constrain(self, constraints: Mapping[Demand, int]) -> None:
        demands = tuple(replace(like, count=count) for like, count in constraints.items())
        self._cluster.runtime.constraints = (Constraint(demands=demands),) if demands else ()

    def _follow_pool(self, cloud: ReplayCloud, pools: SpotPools, pool: str) -> None:
        """Take the newest machines above the number that the pool has now, and looks again at its change."""
        level, for_s = pools.level(pool, self._cluster.world.time)
        for machine in cloud.of_pool(pool)[level:]:
            self._take(machine)
        self._cluster.world.after(for_s + 1e-3, lambda: self._follow_pool(cloud, pools, pool))

    def _take(self, machine: CloudMachine) -> None:
        cluster, draw = self._cluster, self._seed.derive(f"backtest.taken.{machine.cloud_id}")
        model, node = SpotModel(), cluster.runtime.node_on(machine)
        in_s = draw.uniform(0.0, model.taken_within_s)
        if draw.random() >= 1.0 - model.noticed_share and node is not None:
            wait_s = max(0.0, in_s - model.notice_s)
            cluster.world.after(wait_s, lambda: cluster.drains.begin(node, model.notice_s))
            in_s = max(in_s, model.notice_s)
        machine.leaving = True  # it is promised to somebody else: its pool does not count it any more
        cluster.world.after(in_s, lambda: cluster.cloud.end(machine, "preempted"))

    # -- time --------------------------------------------------------------------------------------

    def _wait(self, interval_s: float) -> None:
        """Pass time until the next tick is due, or demand or nodes change, as the monitor does."""
        world, before = self._cluster.world, self._urgent()
        soonest, due = world.time + self.tick_s, world.time + interval_s
        while world.time < due - 1e-9:
            world.advance(min(due - world.time, world.next_event_s()))
            if self._urgent() != before:
                due = min(due, max(soonest, world.time))

    def _urgent(self) -> tuple[int, int, int]:
        runtime = self._cluster.runtime
        return runtime.pending_tasks(), len(runtime.pending_gangs()), len(runtime.live_nodes())

    def _is_over(self) -> bool:
        runtime = self._cluster.runtime
        if self._cluster.world.time < self._end_s:
            return False
        is_busy = any(node.running for node in runtime.nodes.values())
        return not runtime.gangs and not runtime.pending_tasks() and not is_busy

    def _measure(self) -> tuple[float, float, float]:
        """Return $, hours of machines, and the share of the work that is done."""
        cluster, now = self._cluster, self._cluster.world.time
        used_s = [(one.ended_at or now) - one.created_at for one in cluster.cloud.machines.values()]
        runtime = cluster.runtime
        running = sum(len(node.running) for node in runtime.nodes.values() if node.alive)
        open_now = (
            running + runtime.pending_tasks() + sum(len(gang.tasks) for gang in runtime.pending_gangs())
        )
        done = runtime.finished / max(1, runtime.finished + open_now)
        return cluster.spent(), sum(used_s) / 3600.0, done

    def _result(self) -> ReplayResult:
        cluster, runtime = self._cluster, self._cluster.runtime
        cost, hours, done = self._within or self._measure()
        waits, now = sorted(runtime.waits), cluster.world.time
        return ReplayResult(
            cost=cost,
            late_cost=cluster.spent() - cost,
            late_s=max(0.0, now - self._end_s),
            done=done,
            node_hours=hours,
            wait_p50_s=percentile(waits, 0.5),
            wait_p95_s=percentile(waits, 0.95),
            interruptions=runtime.interrupted if isinstance(runtime, ReplayRuntime) else 0,
            machines=sum(one.request_id is not None for one in cluster.cloud.machines.values()),
            unfinished=runtime.pending_tasks() + len(runtime.gangs),
            spend=(*self._spend, (round(now, 1), round(cluster.spent(), 4))),
        )


def playable(spec: ClusterSpec) -> ClusterSpec:
    """Return a configuration for the simulated cloud: machines come set up, and nobody ends the cluster."""
    return replace(spec, install_runtime=False, idle_cluster=None, check_launch_hash=False)


def tick_of(recording: Recording) -> float:
    """Return the shortest time between two ticks: a second, or more for a long recording."""
    return min(SLOWEST_TICK_S, max(1.0, recording.length_s / MOST_TICKS))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of the ordered values is; 0 without any."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _pool_of(machine: CloudMachine) -> str:
    return health_key(machine.node_type, machine.offer.name if machine.offer is not None else "")
