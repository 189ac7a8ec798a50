"""Workload: the work a run gives its cluster, drawn from the seed and put on the world's calendar."""

from __future__ import annotations

from collections.abc import Callable

from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.model import Constraint, Demand, LabelMatch, LabelOperator, Selector, Strategy
from muster.sim.cluster.options import GIB, Setting
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import FOREVER, GangWork, TaskClass
from muster.sim.cluster.world import World

ON_DEMAND: Selector = (LabelMatch("market", LabelOperator.IN, ("on-demand",)),)
ZONE_B: Selector = (LabelMatch("zone", LabelOperator.IN, ("b",)),)
NOT_ZONE_A: Selector = (LabelMatch("zone", LabelOperator.NOT_IN, ("a",)),)
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
    """Waves of tasks and gangs, standing services, and calls of `request_resources`."""

    def __init__(self, seed: Seed, world: World, runtime: SimRuntime, setting: Setting) -> None:
        self._draw = seed.derive("sim.workload")
        self._world, self._runtime = world, runtime
        self._gangs = self._classes = 0
        length_s = setting.faulty_ticks * setting.tick_s
        for _ in range(setting.waves):
            world.after(round(self._draw.uniform(0, 0.9 * length_s), 1), self._wave())

    def _wave(self) -> Callable[[], None]:
        """Drawn now, so that what comes does not depend on what happened before it."""
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
        return TaskClass(shape, self._selectors(draw), f"work-{self._classes}")

    def _selectors(self, draw: Stream) -> tuple[Selector, ...]:
        return draw.choice(((), (), (), (ON_DEMAND,), (ZONE_B,), (ZONE_B, ON_DEMAND), (NOT_ZONE_A,)))
