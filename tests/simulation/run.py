"""Run one seed: first with faults, then calm, checked after every tick.

Every safety property holds after every tick. When the faults stop, the cluster must come to rest within a
budget of virtual time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from tests.simulation.checkers import Check, safety_checks
from tests.simulation.cluster import KEPT_COPIES, FaultyCluster
from tests.simulation.fault_rates import draw_faults
from tests.simulation.liveness import unsettled
from tests.simulation.money import money_checks
from tests.simulation.options import draw_options
from tests.simulation.trace import Trace

from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.model import (
    Constraint,
    Demand,
    LabelMatch,
    LabelOperator,
    NodeKind,
    Selector,
    Strategy,
    health_key,
)
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import GIB, RunOptions
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import FOREVER, GangWork, TaskClass
from muster.sim.cluster.world import World, quiet

ON_DEMAND: Selector = (LabelMatch("market", LabelOperator.IN, ("on-demand",)),)
ZONE_B: Selector = (LabelMatch("zone", LabelOperator.IN, ("b",)),)
NOT_ZONE_A: Selector = (LabelMatch("zone", LabelOperator.NOT_IN, ("a",)),)
SELECTORS = ((), (), (), (ON_DEMAND,), (ZONE_B,), (ZONE_B, ON_DEMAND), (NOT_ZONE_A,))
SHAPES = (
    Resources.of(CPU=1),
    Resources.of(CPU=2, memory=4 * GIB),
    Resources.of(CPU=4),
    Resources.of(CPU=8, memory=60 * GIB),
    Resources.of(CPU=1, GPU=1),
    Resources.of(CPU=2, GPU=0.5),
)
IMPOSSIBLE = (Resources.of(CPU=1, TPU=4), Resources.of(CPU=500), Resources.of(GPU=16))


class Workload:
    """Submits waves of tasks and gangs, standing services, and resource requests."""

    def __init__(self, seed: Seed, world: World, runtime: SimRuntime, options: RunOptions) -> None:
        self._draw = seed.derive("sim.workload")
        self._world, self._runtime = world, runtime
        self._gangs = self._classes = 0
        length_s = options.faulty_ticks * options.tick_s
        for _ in range(options.waves):
            world.after(round(self._draw.uniform(0, 0.9 * length_s), 1), self._wave())

    def _wave(self) -> Callable[[], None]:
        """Draw at once, so that a wave does not depend on what happens before it."""
        draw = self._draw
        kind = draw.choices(("tasks", "gang", "service", "constraint", "impossible"), (55, 20, 10, 10, 5))[0]
        return {
            "tasks": self._tasks,
            "gang": self._gang,
            "service": self._service,
            "constraint": self._constraint,
            "impossible": self._impossible,
        }[kind](draw)

    def _tasks(self, draw: Stream) -> Callable[[], None]:
        like = self._like(draw.choice(SHAPES), draw)
        count, duration_s = draw.randint(1, 25), round(draw.uniform(5, 150), 1)
        return lambda: self._runtime.submit(like, count, duration_s)

    def _service(self, draw: Stream) -> Callable[[], None]:
        like = self._like(draw.choice(SHAPES[:4]), draw)
        count = draw.randint(1, 3)
        return lambda: self._runtime.submit(like, count, FOREVER)

    def _impossible(self, draw: Stream) -> Callable[[], None]:
        like, count = self._like(draw.choice(IMPOSSIBLE), draw), draw.randint(1, 3)
        return lambda: self._runtime.submit(like, count, 30.0)

    def _gang(self, draw: Stream) -> Callable[[], None]:
        self._gangs += 1
        gang_id, strategy = f"g{self._gangs}", draw.choice(tuple(Strategy))
        shape, count = draw.choice(SHAPES[:5]), draw.randint(2, 5)
        duration_s = draw.choice((30.0, 90.0, FOREVER))

        def arrive() -> None:
            bundles = [self._runtime.bundle(shape) for _ in range(count)]
            self._runtime.submit_gang(GangWork(gang_id, strategy, bundles, duration_s))

        return arrive

    def _constraint(self, draw: Stream) -> Callable[[], None]:
        demand = Demand(shape=draw.choice(SHAPES[:4]), count=draw.randint(1, 8), name="standby")
        for_s = draw.choice((60.0, 200.0, FOREVER))

        def arrive() -> None:
            self._runtime.constraints = (Constraint(demands=(demand,)),)
            if for_s != FOREVER:
                self._world.after(for_s, clear)

        def clear() -> None:
            self._runtime.constraints = ()

        return arrive

    def _like(self, shape: Resources, draw: Stream) -> TaskClass:
        self._classes += 1
        return TaskClass(shape, draw.choice(SELECTORS), f"work-{self._classes}")


FAR_AHEAD_S = 30 * 86_400.0
REST_TICKS = 3  # ticks in a row without changes
TraceListener = Callable[[str, bool], None]  # a trace line, and whether anything happened


@dataclass
class Report:
    """The result of one seed."""

    seed: int
    ticks: int = 0
    faulty_ticks: int = 0
    trace_hash: str = ""
    violations: list[str] = field(default_factory=list)  # empty when all is well
    machines_launched: int = 0
    machines_left: int = 0
    tasks_finished: int = 0
    spent: float = 0.0
    bill: float = 0.0
    lives: int = 0
    options: str = ""  # of the command line that replays it
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def replay(self) -> str:
        return f"python -m tests.simulation replay --seed {self.seed} --until-tick {self.ticks}{self.options}"


class SeedRun:
    """Runs one seed, step by step."""

    cluster_class: ClassVar[type[FaultyCluster]] = FaultyCluster
    command_options: ClassVar[str] = ""

    def __init__(self, seed: int, on_line: TraceListener | None = None) -> None:
        self.seed = Seed(seed)
        self.options = self.draw_options()
        self.faults = draw_faults(self.seed)
        self.cluster = self.cluster_class(self.seed, self.options, self.faults)
        self.report = Report(seed=seed, options=self.command_options)
        self._workload = Workload(self.seed, self.cluster.world, self.cluster.runtime, self.options)
        self._checks = self.checks()
        self._trace = Trace()
        self._on_line = on_line
        self._down_until = 0.0
        self._rested = 0

    def draw_options(self) -> RunOptions:
        return draw_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        """Return every property that holds after each tick."""
        return (*safety_checks(), *money_checks())

    def header(self) -> dict[str, object]:
        """Return every drawn option."""
        return {**self.options.shown, "faults": dict(self.faults.rates)}

    def to_end(self, until_tick: int | None = None) -> Report:
        """Run until something is wrong, the cluster is at rest, or `until_tick`."""
        report, options = self.report, self.options
        budget = options.faulty_ticks + int(options.calm_s / options.tick_s)
        while report.ok and self._rested < REST_TICKS and report.ticks not in (until_tick, budget):
            self.step()
        if report.ok and self._rested < REST_TICKS and report.ticks == budget:  # also in a replay up to here
            report.violations.extend(f"not at rest: {text}" for text in unsettled(self.cluster))
        return self._finish()

    def step(self) -> None:
        """Run one tick, its checks, and the pause after it."""
        report, cluster = self.report, self.cluster
        report.ticks += 1
        calm = report.ticks > self.options.faulty_ticks
        if calm and not self.faults.stopped:
            self.faults.stop()
            cluster.cloud.end_shortages()
        if cluster.world.time >= self._down_until or calm:
            if self.faults.hit("killed"):
                cluster.crash_points.kill_after = self.faults.stream("killed").randrange(40)
            cluster.tick()
            if cluster.plan is None:
                self._down_until = cluster.world.time + self.faults.between("killed", 0, 60)
        else:
            cluster.rest()
        report.violations.extend(text for check in self._checks for text in check(cluster))
        self._note("calm" if calm else "faulty")
        cluster.store.commits.clear()
        if calm:
            self._rested = self._rested + 1 if self._is_at_rest() else 0
        else:
            report.faulty_ticks += 1
            self._inject_faults()
        self._pass_time()

    def _pass_time(self) -> None:
        """Pass the time until the next tick."""
        self.cluster.world.advance(self.options.tick_s)

    def _is_at_rest(self) -> bool:
        calm_s = (self.report.ticks - self.options.faulty_ticks) * self.options.tick_s
        return calm_s > self.options.min_calm_s and not any(True for _ in unsettled(self.cluster))

    def _note(self, phase: str) -> None:
        line, happened = self._trace.line(self.cluster, self.report.ticks, phase)
        if self._on_line is not None:
            self._on_line(line, happened)

    def _inject_faults(self) -> None:
        """Inject the faults that happen between two ticks."""
        faults, cluster = self.faults, self.cluster
        if faults.hit("sold_out"):
            name = faults.stream("sold_out").choice(sorted(cluster.cloud.sells.types))
            cluster.cloud.sell_out(name, faults.between("sold_out", 20, 300))
        self._change_offers()
        self._change_clock()
        if faults.hit("config_edited"):
            cluster.spec.edit(faults.stream("config_edited"))
        if "head_lost" in faults.rates:
            cluster.keep_copy()
        if faults.hit("head_lost"):
            cluster.lose_head(faults.stream("head_lost").randint(1, KEPT_COPIES))
            self._down_until = cluster.world.time + faults.between("head_lost", 0, 200)
        if faults.hit("head_replaced"):
            cluster.replace_head(faults.between("head_replaced", 0, 300))
        if faults.hit("joined_by_hand"):
            stays_s = faults.between("joined_by_hand", 30, 300)
            cluster.join_by_hand(faults.stream("joined_by_hand"), stays_s)
        for kind in ("machine_dies", "node_dies", "node_restarts", "preempted", "preempted_with_notice"):
            workers = [m for m in cluster.cloud.alive() if m.kind is NodeKind.WORKER]
            if workers and faults.hit(kind):
                self._apply_fault(kind, faults.stream(kind).choice(workers))

    def _change_clock(self) -> None:
        faults, world = self.faults, self.cluster.world
        if faults.hit("clock_jumps"):
            world.jump(faults.stream("clock_jumps").choice((-3600.0, -30.0, 30.0, 600.0, 86400.0)))
        if faults.hit("clock_far_ahead"):
            world.jump(FAR_AHEAD_S)
            world.after(faults.between("clock_far_ahead", 10, 300), lambda: world.jump(-FAR_AHEAD_S))

    def _change_offers(self) -> None:
        faults, cluster, offers = self.faults, self.cluster, self.cluster.spec.offers()
        if offers and faults.hit("offer_sold_out"):
            known, offer = faults.stream("offer_sold_out").choice(offers)
            sold_out_s = faults.between("offer_sold_out", 20, 300)
            cluster.cloud.sell_out(health_key(known.name, offer.name), sold_out_s)
        if offers and faults.hit("offer_price_changes"):
            cluster.spec.reprice_offer(faults.stream("offer_price_changes"))

    def _apply_fault(self, kind: str, machine: CloudMachine) -> None:
        cluster = self.cluster
        node = cluster.runtime.node_on(machine)
        if kind in ("machine_dies", "preempted"):
            cluster.cloud.end(machine, kind)
        elif kind == "node_dies" and node is not None:
            cluster.runtime.kill_node(node)
        elif kind == "node_restarts":
            cluster.restart_node(machine, self.faults.between(kind, 0, 20))
        elif kind == "preempted_with_notice":
            if node is not None:
                cluster.drains.begin(node, 30.0)
            cluster.world.after(30.0, lambda: cluster.cloud.end(machine, kind))

    def _finish(self) -> Report:
        report, cluster = self.report, self.cluster
        report.trace_hash = self._trace.digest
        report.machines_launched = len(cluster.cloud.machines) - 1
        report.machines_left = len(cluster.cloud.alive())
        report.tasks_finished = cluster.runtime.finished
        report.spent, report.bill = cluster.spent(), cluster.cloud.bill()
        report.lives = cluster.lives
        report.faults = dict(sorted(self.faults.injected.items()))
        return report


def simulate(seed: int, on_line: TraceListener | None = None) -> Report:
    """Run one seed to its end."""
    return SeedRun(seed, on_line).to_end()


CHUNK = 5


def sweep(seeds: Sequence[int], jobs: int = 1, kind: type[SeedRun] = SeedRun) -> Iterator[Report]:
    """Yield every seed's report. A run that breaks the simulator itself raises."""
    quiet()
    one = partial(_simulated, kind)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=quiet) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)


def _simulated(kind: type[SeedRun], seed: int) -> Report:
    return kind(seed).to_end()
